/* Winograd's convolutions of 3 x 3, included as convolve.h is: four outputs of 2 x 2 from a patch of 4 x 4 inputs by 16
 * products, where 36 would do. Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016,
 * arXiv:1509.09308, whose names these are: Y = At [(G g Gt) * (Bt d B)] A. The 16 numbers of a patch lie in 16 planes
 * [patch, channels], `far` floats apart. */

/* Bt d B of a row of `tiles` patches. */
static void FN(patches)(const float *d, i64 row, i64 gap, i64 tiles, float *planes, i64 far) {
    for (i64 c = 0; c < gap; c += WIDTH) {
        FN(vec) column[4][4]; /* a column of Bt d */
        for (i64 t = 0; t < tiles; t++) {
            UNROLLED for (int j = 0; j < 4; j++) {
                if (j < 2 && t) {
                    UNROLLED for (int i = 0; i < 4; i++) column[j][i] = column[j + 2][i];
                    continue;
                }
                const float *from = d + (2 * t + j) * gap + c;
                FN(vec) a = GIVEN(from), b = GIVEN(from + row), e = GIVEN(from + 2 * row), f = GIVEN(from + 3 * row);
                column[j][0] = a - e, column[j][1] = b + e, column[j][2] = e - b, column[j][3] = b - f;
            }
            float *to = planes + t * gap + c;
            UNROLLED for (int i = 0; i < 4; i++) {
                VEC(to + (4 * i) * far) = column[0][i] - column[2][i];
                VEC(to + (4 * i + 1) * far) = column[1][i] + column[2][i];
                VEC(to + (4 * i + 2) * far) = column[2][i] - column[1][i];
                VEC(to + (4 * i + 3) * far) = column[1][i] - column[3][i];
            }
        }
    }
}

/* At m A of a row of patches, two rows of outputs. They begin with the bias, or where that is null as they are. */
static void FN(unpatch)(const float *planes, i64 far, i64 tiles, i64 wide, const float *bias, float *y, i64 row) {
    for (i64 t = 0; t < tiles; t++)
        for (i64 c = 0; c < wide; c += WIDTH) {
            const float *from = planes + t * wide + c;
            FN(vec) high[4], low[4];
            UNROLLED for (int j = 0; j < 4; j++) {
                FN(vec) b = GIVEN(from + (4 + j) * far), e = GIVEN(from + (8 + j) * far);
                high[j] = GIVEN(from + j * far) + b + e, low[j] = b - e - GIVEN(from + (12 + j) * far);
            }
            float *to = y + 2 * t * wide + c;
            const FN(vec) sums[4] = {high[0] + high[1] + high[2], high[1] - high[2] - high[3],
                                     low[0] + low[1] + low[2], low[1] - low[2] - low[3]};
            UNROLLED for (int q = 0; q < 4; q++) {
                float *at = to + (q >> 1) * row + (q & 1) * wide;
                VEC(at) = sums[q] + (bias ? GIVEN(bias + c) : GIVEN(at));
            }
        }
}

/* A dy At of two rows of slopes. */
static void FN(slope_patches)(const float *dy, i64 row, i64 wide, i64 tiles, float *planes, i64 far) {
    for (i64 t = 0; t < tiles; t++)
        for (i64 c = 0; c < wide; c += WIDTH) {
            const float *from = dy + 2 * t * wide + c;
            float *to = planes + t * wide + c;
            FN(vec) a = GIVEN(from), b = GIVEN(from + wide), e = GIVEN(from + row), f = GIVEN(from + row + wide);
            const FN(vec) left[4] = {a, a + e, a - e, -e}, right[4] = {b, b + f, b - f, -f};
            UNROLLED for (int i = 0; i < 4; i++) {
                VEC(to + (4 * i) * far) = left[i], VEC(to + (4 * i + 1) * far) = left[i] + right[i];
                VEC(to + (4 * i + 2) * far) = left[i] - right[i], VEC(to + (4 * i + 3) * far) = -right[i];
            }
        }
}
