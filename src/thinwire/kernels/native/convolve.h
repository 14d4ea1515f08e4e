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
#define TAPS 12
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

/* Outputs of `pixels` pixels of a row, `groups` of channels: what they begin with, `step` floats a pixel apart, and the
 * sum over the taps of input times weight. */
INLINE void FN(tile)(const Reach *k, const float *x, const float *w, const float *begin, i64 step, float *y,
                     const int pixels, const int groups) {
    FN(vec) sums[PIXELS][ABREAST][PARTS];
    const i64 hop = k->hop, far = k->taps * 16;
    UNROLLED for (int p = 0; p < pixels; p++)
        UNROLLED for (int o = 0; o < groups; o++)
            UNROLLED for (int v = 0; v < PARTS; v++) sums[p][o][v] = GIVEN(begin + p * step + 16 * o + v * WIDTH);
    for (i64 ky = 0; ky < k->kernel; ky++) {
        const float *from = x + ky * k->row;
        for (i64 r = 0; r < k->runs; r++, from += k->gap)
            for (i64 j = 0; j < k->run; j++, w += 16) {
                FN(vec) weights[ABREAST][PARTS];
                UNROLLED for (int o = 0; o < groups; o++)
                    UNROLLED for (int v = 0; v < PARTS; v++) weights[o][v] = GIVEN(w + o * far + v * WIDTH);
                UNROLLED for (int p = 0; p < pixels; p++) {
                    FN(vec) input = SPREAD(from[p * hop + j]);
                    UNROLLED for (int o = 0; o < groups; o++)
                        UNROLLED for (int v = 0; v < PARTS; v++)
                            sums[p][o][v] = FUSED(input, weights[o][v], sums[p][o][v]);
                }
            }
    }
    UNROLLED for (int p = 0; p < pixels; p++)
        UNROLLED for (int o = 0; o < groups; o++)
            UNROLLED for (int v = 0; v < PARTS; v++) VEC(y + p * k->wide + 16 * o + v * WIDTH) = sums[p][o][v];
}

/* A row of `width` outputs. They begin with the bias, or with what is there, where the bias is null. */
static void FN(convolve)(const Reach *k, const float *x, const float *packed, const float *bias, i64 width, float *y) {
    const i64 tiles = (width + PIXELS - 1) / PIXELS, pixels = (width + tiles - 1) / tiles;
    for (i64 o = 0; o < k->wide;) {
        const int groups = k->wide - o >= 16 * ABREAST ? ABREAST : 1;
        const float *w = packed + o * k->taps;
        for (i64 t = 0; t < tiles; t++) {
            /* With a bias the last tile may overlap the one before. */
            const i64 at = bias ? least(t * pixels, width - pixels) : t * pixels, some = least(pixels, width - at);
            const float *from = x + at * k->hop, *begin = bias ? bias + o : y + at * k->wide + o;
            const i64 step = bias ? 0 : k->wide;
            float *to = y + at * k->wide + o;
            switch (some * 4 + groups) {
#define CASE(p) \
    case p * 4 + ABREAST: FN(tile)(k, from, w, begin, step, to, p, ABREAST); break;
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
    case p * 4 + 1: FN(tile)(k, from, w, begin, step, to, p, 1); break;
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
#endif
            }
        }
        o += 16 * groups;
    }
}

/* Adds a row of `count` pixels to each channel's moments of `before` pixels: mean, and sum of squares around it. */
static void FN(moments)(const float *row, i64 count, i64 wide, double before, double *mean, double *square) {
    const double after = before + (double)count;
    for (i64 o = 0; o < wide; o += 16) {
        float sums[16] = {0}, here[16], squares[16] = {0};
        for (i64 j = 0; j < count; j++)
            for (int v = 0; v < 16; v += WIDTH) VEC(sums + v) += GIVEN(row + j * wide + o + v);
        for (int v = 0; v < 16; v++) here[v] = sums[v] / (float)count;
        for (i64 j = 0; j < count; j++)
            for (int v = 0; v < 16; v += WIDTH) {
                FN(vec) off = GIVEN(row + j * wide + o + v) - GIVEN(here + v);
                VEC(squares + v) += off * off;
            }
        for (int v = 0; v < 16; v++) {
            double off = (double)here[v] - mean[o + v];
            mean[o + v] += off * (double)count / after;
            square[o + v] += (double)squares[v] + off * off * before * (double)count / after;
        }
    }
}

/* `count` pixels of a row, each channel times a scale and plus a shift. */
static void FN(normed)(const float *row, i64 count, i64 wide, const float *scale, const float *shift, float *to) {
    for (i64 j = 0; j < count * wide; j += wide)
        for (i64 o = 0; o < wide; o += WIDTH)
            VEC(to + j + o) = FUSED(GIVEN(row + j + o), GIVEN(scale + o), GIVEN(shift + o));
}

/* What follows a convolution and its norm: a row of outputs, and where there is a pool, of two, with which of four was
 * the first largest. NaN is larger than all, as in torch. 1: not all is finite. */
static int FN(finish)(const Stage *s, const float *rows, const float *more, float *y, int32_t *winners) {
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
            if (more) top += GIVEN(more + j * wide + o);
            if (s->c.relu) top = (FN(vec))PICK((FN(ints))(top < none), none, top);
            flaw += top * 0;
            VEC(y + o) = top;
        }
    int found = 0;
    for (int v = 0; v < WIDTH; v++) found |= flaw[v] != 0;
    return found;
}

/* -- derivatives ---------------------------------------------------------------------------------------------- */

/* Of a picture: sets to zero what ReLU did not let through, and adds the others to the bias's. What was added to the
 * outputs has the same derivatives: `more`, which is written where it is `fresh`. */
static void FN(bar)(const Stage *s, const float *y, float *dy, float *bias, float *more, i64 more_row, int fresh) {
    for (i64 i = 0; i < s->height; i++, y += s->row_out, dy += s->row_out, more += more_row)
        for (i64 j = 0; j < s->width * s->wide; j += s->wide)
            for (i64 o = 0; o < s->wide; o += WIDTH) {
                FN(vec) slope = GIVEN(dy + j + o);
                if (s->c.relu) slope = (FN(vec))((FN(ints))(GIVEN(y + j + o) > SPREAD(0)) & (FN(ints))slope);
                VEC(dy + j + o) = slope;
                VEC(bias + o) += slope;
                if (more_row && !fresh) VEC(more + j + o) += slope;
                else if (more_row) VEC(more + j + o) = slope;
            }
}

/* A row of slopes as those of two rows of the convolution's outputs: zero but where the largest was. */
static void FN(spread)(const Stage *s, const float *dy, const int32_t *winners, float *rows) {
    const i64 wide = s->wide;
    for (i64 j = 0; j < s->width; j++, rows += 2 * wide, dy += wide, winners += wide)
        for (i64 o = 0; o < wide; o += WIDTH)
            for (int q = 0; q < 4; q++) {
                FN(ints) won = *(const FN(ints) *)(winners + o), mine = (FN(ints))(won == q);
                float *to = rows + (q >> 1) * s->across * wide + (q & 1) * wide + o;
                VEC(to) = (FN(vec))(mine & (FN(ints))GIVEN(dy + o));
            }
}

/* Adds a row's slopes, and slopes times how far the norm's inputs z are from their means, to each channel's sums. */
static void FN(co_moments)(const float *slopes, const float *z, i64 count, i64 wide, const float *mean, double *sum,
                           double *product) {
    for (i64 o = 0; o < wide; o += 16) {
        float sums[16] = {0}, products[16] = {0};
        for (i64 j = o; j < count * wide; j += wide)
            for (int v = 0; v < 16; v += WIDTH) {
                FN(vec) slope = GIVEN(slopes + j + v);
                VEC(sums + v) += slope;
                VEC(products + v) = FUSED(slope, GIVEN(z + j + v) - GIVEN(mean + o + v), VEC(products + v));
            }
        for (int v = 0; v < 16; v++) sum[o + v] += (double)sums[v], product[o + v] += (double)products[v];
    }
}

/* Slopes of a norm's inputs: scale * slope + a * (z - mean) + b. */
static void FN(norm_back)(const float *slopes, const float *z, i64 count, i64 wide, const float *mean,
                          const float *scale, const float *a, const float *b, float *to) {
    for (i64 j = 0; j < count * wide; j += wide)
        for (i64 o = 0; o < wide; o += WIDTH) {
            FN(vec) off = GIVEN(z + j + o) - GIVEN(mean + o);
            VEC(to + j + o) = FUSED(GIVEN(slopes + j + o), GIVEN(scale + o), FUSED(off, GIVEN(a + o), GIVEN(b + o)));
        }
}

/* dw[t][..] += the sum over some rows' pixels of x[t] times slopes, of `taps` neighbours and 16 channels. */
INLINE void FN(owe)(const Reach *k, const float *x, const float *slopes, i64 slopes_row, i64 rows, i64 width, i64 down,
                    float *dw, const int taps) {
    FN(vec) sums[TAPS][PARTS];
    UNROLLED for (int t = 0; t < taps; t++)
        UNROLLED for (int v = 0; v < PARTS; v++) sums[t][v] = GIVEN(dw + t * k->wide + v * WIDTH);
    for (i64 i = 0; i < rows; i++, x += down, slopes += slopes_row) {
        const float *from = x, *given = slopes;
        for (i64 p = 0; p < width; p++, from += k->hop, given += k->wide) {
            FN(vec) slope[PARTS];
            UNROLLED for (int v = 0; v < PARTS; v++) slope[v] = GIVEN(given + v * WIDTH);
            UNROLLED for (int t = 0; t < taps; t++) {
                FN(vec) input = SPREAD(from[t]);
                UNROLLED for (int v = 0; v < PARTS; v++) sums[t][v] = FUSED(input, slope[v], sums[t][v]);
            }
        }
    }
    UNROLLED for (int t = 0; t < taps; t++)
        UNROLLED for (int v = 0; v < PARTS; v++) VEC(dw + t * k->wide + v * WIDTH) = sums[t][v];
}

/* What rows of slopes add to the derivatives of the weights, [taps, channels]; `down` floats from a row's inputs to the
 * next one's. */
static void FN(owe_rows)(const Reach *k, const float *x, const float *slopes, i64 slopes_row, i64 rows, i64 width,
                         i64 down, float *dw) {
    const i64 length = k->kernel * k->gap, parts = (length + TAPS - 1) / TAPS;
    for (i64 o = 0; o < k->wide; o += 16)
        for (i64 ky = 0; ky < k->kernel; ky++)
            for (i64 n = 0; n < parts; n++) {
                i64 from = length * n / parts, taps = length * (n + 1) / parts - from;
                const float *at = x + ky * k->row + from;
                float *to = dw + (ky * length + from) * k->wide + o;
                switch (taps) {
#define CASE(t) \
    case t: FN(owe)(k, at, slopes + o, slopes_row, rows, width, down, to, t); break;
                CASE(1) CASE(2)
#if TAPS > 2
                CASE(3) CASE(4) CASE(5) CASE(6)
#endif
#if TAPS > 6
                CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
#undef CASE
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

#include "winograd.h"

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
