/* The loops of convnet.c, included once for each level of the instruction set: FN(name) is name_plain, name_avx2 or
 * name_avx512. A sum is of fused products where the level has them. */

#if defined(AVX512)
#define WIDTH 16
#define SPREAD(x) ((FN(vec))_mm512_set1_ps(x))
#define FUSED(a, b, c) ((FN(vec))_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#elif defined(AVX2)
#define WIDTH 8
#define SPREAD(x) ((FN(vec))_mm256_set1_ps(x))
#define FUSED(a, b, c) ((FN(vec))_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#else
#define WIDTH 4
#define SPREAD(x) ((FN(vec)){(x), (x), (x), (x)})
#if defined(__aarch64__)
#define FUSED(a, b, c) ((FN(vec))vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#else
#define FUSED(a, b, c) ((a) * (b) + (c))
#endif
#endif
#define PARTS (16 / WIDTH) /* vectors of a group of 16 channels */
typedef float FN(vec) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t FN(ints) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
#define VEC(at) (*(FN(vec) *)(at))
#define GIVEN(at) (*(const FN(vec) *)(at))
#define INTS(at) (*(FN(ints) *)(at))
#define PICK(mask, yes, no) (((mask) & (FN(ints))(yes)) | (~(mask) & (FN(ints))(no)))

/* How many sums there are registers for: pixels beside each other times groups of channels, vectors of a row, taps. */
#if defined(AVX512)
#define PIXELS 12
#define ABREAST 2
#define ALONG 10
#define TAPS 6
#elif defined(AVX2) || defined(__aarch64__)
#define PIXELS 6
#define ABREAST 1
#define ALONG 10
#define TAPS 6
#else
#define PIXELS 2
#define ABREAST 1
#define ALONG 8
#define TAPS 2
#endif

/* -- forward -------------------------------------------------------------------------------------------------- */

/* Outputs of `pixels` pixels of a row, `groups` of channels: the bias and the sum over the taps of input times weight. */
INLINE void FN(tile)(const Stage *s, const float *x, const float *w, const float *bias, float *y, const int pixels, const int groups) {
    FN(vec) sums[PIXELS][ABREAST][PARTS];
    const i64 gap = s->gap, far = s->taps * 16;
    UNROLLED for (int p = 0; p < pixels; p++)
        UNROLLED for (int o = 0; o < groups; o++)
            UNROLLED for (int v = 0; v < PARTS; v++) sums[p][o][v] = GIVEN(bias + 16 * o + v * WIDTH);
    for (i64 ky = 0; ky < s->c.kernel; ky++) {
        const float *from = x + ky * s->row;
        for (i64 r = 0; r < s->runs; r++, from += gap)
            for (i64 j = 0; j < s->run; j++, w += 16) {
                FN(vec) weights[ABREAST][PARTS];
                UNROLLED for (int o = 0; o < groups; o++)
                    UNROLLED for (int v = 0; v < PARTS; v++) weights[o][v] = GIVEN(w + o * far + v * WIDTH);
                UNROLLED for (int p = 0; p < pixels; p++) {
                    FN(vec) input = SPREAD(from[p * gap + j]);
                    UNROLLED for (int o = 0; o < groups; o++)
                        UNROLLED for (int v = 0; v < PARTS; v++) sums[p][o][v] = FUSED(input, weights[o][v], sums[p][o][v]);
                }
            }
    }
    UNROLLED for (int p = 0; p < pixels; p++)
        UNROLLED for (int o = 0; o < groups; o++)
            UNROLLED for (int v = 0; v < PARTS; v++) VEC(y + p * s->wide + 16 * o + v * WIDTH) = sums[p][o][v];
}

/* A row of a convolution's outputs. The last tile may overlap the one before. */
static void FN(convolve)(const Stage *s, const float *x, float *y) {
    const i64 width = s->across, tiles = (width + PIXELS - 1) / PIXELS, pixels = (width + tiles - 1) / tiles;
    for (i64 o = 0; o < s->wide;) {
        const int groups = s->wide - o >= 16 * ABREAST ? ABREAST : 1;
        const float *w = s->packed + o * s->taps, *bias = s->bias + o;
        for (i64 t = 0; t < tiles; t++) {
            i64 at = least(t * pixels, width - pixels);
            const float *from = x + at * s->gap;
            float *to = y + at * s->wide + o;
            switch (pixels * 4 + groups) {
#define CASE(p) \
    case p * 4 + ABREAST: FN(tile)(s, from, w, bias, to, p, ABREAST); break;
                CASE(1) CASE(2)
#if PIXELS > 2
                CASE(3) CASE(4) CASE(5) CASE(6)
#endif
#if PIXELS > 6
                CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
#undef CASE
#if ABREAST > 1
#define CASE(p) \
    case p * 4 + 1: FN(tile)(s, from, w, bias, to, p, 1); break;
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
#endif
            }
        }
        o += 16 * groups;
    }
}

/* What follows a convolution: of one row, or of two, with which of four was the first largest. NaN is larger than all, as
 * in torch. 1: not all is finite. */
static int FN(settle)(const Stage *s, const float *rows, float *y, int32_t *winners) {
    FN(vec) flaw = SPREAD(0), none = SPREAD(0);
    const i64 wide = s->wide, step = s->c.pool ? 2 * wide : wide;
    for (i64 j = 0; j < s->width; j++, rows += step, y += wide, winners += wide)
        for (i64 o = 0; o < wide; o += WIDTH) {
            FN(vec) top = GIVEN(rows + o);
            if (s->c.pool) {
                FN(ints) won = {0};
                for (int q = 1; q < 4; q++) {
                    FN(vec) other = GIVEN(rows + (q >> 1) * s->across * wide + (q & 1) * wide + o);
                    FN(ints) takes = (FN(ints))(other > top) | (FN(ints))(other != other);
                    top = (FN(vec))PICK(takes, other, top);
                    won = PICK(takes, won * 0 + q, won);
                }
                INTS(winners + o) = won;
            }
            if (s->c.relu) top = (FN(vec))PICK((FN(ints))(top < none), none, top);
            flaw += top * 0;
            VEC(y + o) = top;
        }
    int found = 0;
    for (int v = 0; v < WIDTH; v++) found |= flaw[v] != 0;
    return found;
}

/* -- derivatives ---------------------------------------------------------------------------------------------- */

/* Of a picture: sets to zero what ReLU did not let through, and adds the others to the bias's. */
static void FN(bar)(const Stage *s, const float *y, float *dy, float *bias) {
    for (i64 i = 0; i < s->height; i++, y += s->row_out, dy += s->row_out)
        for (i64 j = 0; j < s->width * s->wide; j += s->wide)
            for (i64 o = 0; o < s->wide; o += WIDTH) {
                FN(vec) slope = GIVEN(dy + j + o);
                if (s->c.relu) slope = (FN(vec))((FN(ints))(GIVEN(y + j + o) > SPREAD(0)) & (FN(ints))slope);
                VEC(dy + j + o) = slope;
                VEC(bias + o) += slope;
            }
}

/* A row of slopes as those of two rows of the convolution's outputs: zero but where the largest was. */
static void FN(spread)(const Stage *s, const float *dy, const int32_t *winners, float *rows) {
    const i64 wide = s->wide;
    for (i64 j = 0; j < s->width; j++, rows += 2 * wide, dy += wide, winners += wide)
        for (i64 o = 0; o < wide; o += WIDTH)
            for (int q = 0; q < 4; q++) {
                FN(ints) won = *(const FN(ints) *)(winners + o);
                VEC(rows + (q >> 1) * s->across * wide + (q & 1) * wide + o) = (FN(vec))((FN(ints))(won == q) & (FN(ints))GIVEN(dy + o));
            }
}

/* dw[t][..] += the sum over a row's pixels of x[t] times slopes, of `taps` neighbours and 16 channels. */
INLINE void FN(owe)(const Stage *s, const float *x, const float *slopes, float *dw, const int taps) {
    FN(vec) sums[TAPS][PARTS];
    UNROLLED for (int t = 0; t < taps; t++)
        UNROLLED for (int v = 0; v < PARTS; v++) sums[t][v] = GIVEN(dw + t * s->wide + v * WIDTH);
    for (i64 p = 0; p < s->across; p++, x += s->gap, slopes += s->wide) {
        FN(vec) given[PARTS];
        UNROLLED for (int v = 0; v < PARTS; v++) given[v] = GIVEN(slopes + v * WIDTH);
        UNROLLED for (int t = 0; t < taps; t++) {
            FN(vec) input = SPREAD(x[t]);
            UNROLLED for (int v = 0; v < PARTS; v++) sums[t][v] = FUSED(input, given[v], sums[t][v]);
        }
    }
    UNROLLED for (int t = 0; t < taps; t++)
        UNROLLED for (int v = 0; v < PARTS; v++) VEC(dw + t * s->wide + v * WIDTH) = sums[t][v];
}

/* What a row of slopes adds to the derivatives of the first stage's weights, [taps, channels]. */
static void FN(owe_first)(const Stage *s, const float *x, const float *slopes, float *dw) {
    const i64 length = s->c.kernel * s->gap, parts = (length + TAPS - 1) / TAPS;
    for (i64 o = 0; o < s->wide; o += 16)
        for (i64 ky = 0; ky < s->c.kernel; ky++)
            for (i64 k = 0; k < parts; k++) {
                i64 from = length * k / parts, taps = length * (k + 1) / parts - from;
                const float *at = x + ky * s->row + from;
                float *to = dw + (ky * length + from) * s->wide + o;
                switch (taps) {
                case 1: FN(owe)(s, at, slopes + o, to, 1); break;
                case 2: FN(owe)(s, at, slopes + o, to, 2); break;
#if TAPS > 2
                case 3: FN(owe)(s, at, slopes + o, to, 3); break;
                case 4: FN(owe)(s, at, slopes + o, to, 4); break;
                case 5: FN(owe)(s, at, slopes + o, to, 5); break;
                case 6: FN(owe)(s, at, slopes + o, to, 6); break;
#endif
                }
            }
}

/* into[..] += the sum of `by` times the row that begins at `at`, over a list; `length` vectors. */
INLINE void FN(gather)(float *into, const float *from, const Owed *list, i64 n, const int length) {
    FN(vec) sums[ALONG];
    UNROLLED for (int v = 0; v < length; v++) sums[v] = GIVEN(into + v * WIDTH);
    for (i64 e = 0; e < n; e++) {
        const float *row = from + list[e].at;
        FN(vec) by = SPREAD(list[e].by);
        UNROLLED for (int v = 0; v < length; v++) sums[v] = FUSED(by, GIVEN(row + v * WIDTH), sums[v]);
    }
    UNROLLED for (int v = 0; v < length; v++) VEC(into + v * WIDTH) = sums[v];
}

/* The same of rows of any multiple of 16 floats. */
static void FN(gather_row)(float *into, const float *from, const Owed *list, i64 n, i64 length) {
    const i64 vectors = length / WIDTH, parts = (vectors + ALONG - 1) / ALONG;
    for (i64 k = 0; k < parts; k++) {
        i64 at = vectors * k / parts, some = vectors * (k + 1) / parts - at;
        at *= WIDTH;
        switch (some) {
#define CASE(v) \
    case v: FN(gather)(into + at, from + at, list, n, v); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#if ALONG > 8
            CASE(9) CASE(10)
#endif
#undef CASE
        }
    }
}

#undef WIDTH
#undef SPREAD
#undef FUSED
#undef PARTS
#undef VEC
#undef GIVEN
#undef INTS
#undef PICK
#undef PIXELS
#undef ABREAST
#undef ALONG
#undef TAPS
