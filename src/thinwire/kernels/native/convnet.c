/* Convolutions before a chain of linear layers, forward and backward. convolve.h and winograd.h hold the loops.
 *
 * Unlike native.c's kernels these need not give the bits of torch: training is one client's own affair. A picture is
 * [height, width, channels] here, of outputs with channels padded by zeros to groups of 16, and with a border of the
 * zeros that the next convolutions add.
 *
 * There are two ways back. Behind a pool a derivative is zero at three positions of four, and behind ReLU at some more:
 * what is left become lists, and each entry of a list moves whole rows of neighbours. Behind a norm, where nothing is
 * zero, and in the first layers, whose rows are short, products are those of all positions.
 */

#include "convstage.h"
#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define X86 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define FN(name) JOIN(name, LEVEL)

#define LEVEL _plain
#include "convolve.h"
#undef LEVEL

#ifdef X86
#define AVX2 1
#define LEVEL _avx2
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2")
#endif
#include "convolve.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef LEVEL
#undef AVX2

#define AVX512 1
#define LEVEL_512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2"
#define LEVEL _avx512
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target(LEVEL_512))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2,prefer-vector-width=512")
#endif
#include "convolve.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef LEVEL
#undef AVX512
#define CALL(name, ...) \
    (level == 2 ? name##_avx512(__VA_ARGS__) : level == 1 ? name##_avx2(__VA_ARGS__) : name##_plain(__VA_ARGS__))
#else
#define CALL(name, ...) ((void)level, name##_plain(__VA_ARGS__))
#endif

/* -- forward -------------------------------------------------------------------------------------------------- */

/* G g Gt of a kernel, whose numbers are `step` apart: 16 numbers, `far` apart. winograd.h names them. */
static void spread_kernel(const float *g, i64 step, float *to, i64 far) {
    float high[4][3];
    for (int j = 0; j < 3; j++) {
        const float a = g[j * step], b = g[(3 + j) * step], c = g[(6 + j) * step];
        high[0][j] = a, high[1][j] = (a + b + c) / 2, high[2][j] = (a - b + c) / 2, high[3][j] = c;
    }
    for (int i = 0; i < 4; i++, to += 4 * far) {
        const float a = high[i][0], b = high[i][1], c = high[i][2];
        to[0] = a, to[far] = (a + b + c) / 2, to[2 * far] = (a - b + c) / 2, to[3 * far] = c;
    }
}

/* Adds `by` times Gt m G to a kernel, of 16 numbers that are `far` apart. */
static void gather_kernel(const float *m, i64 far, float by, float *to) {
    float high[3][4];
    for (int j = 0; j < 4; j++) {
        const float a = m[j * far], b = m[(4 + j) * far], c = m[(8 + j) * far], d = m[(12 + j) * far];
        high[0][j] = a + (b + c) / 2, high[1][j] = (b - c) / 2, high[2][j] = (b + c) / 2 + d;
    }
    for (int i = 0; i < 3; i++, to += 3) {
        const float *a = high[i];
        to[0] += by * (a[0] + (a[1] + a[2]) / 2);
        to[1] += by * ((a[1] - a[2]) / 2);
        to[2] += by * ((a[1] + a[2]) / 2 + a[3]);
    }
}

/* `rows` rows of `tiles` patches each, convolved. */
static void patched(Net *net, int level, const Reach *k, const float *x, i64 x_row, const float *weights,
                    const float *bias, i64 rows, i64 tiles, float *y, i64 y_row) {
    const i64 all = rows * tiles, far = all * k->gap, far_out = all * k->wide;
    for (i64 r = 0; r < rows; r++)
        CALL(patches, x + 2 * r * x_row, x_row, k->gap, tiles, net->planes + r * tiles * k->gap, far);
    for (i64 p = 0; p < 16; p++) {
        const float *plane = net->planes + p * far, *w = weights + p * k->wide * k->taps;
        CALL(convolve, k, plane, w, net->none, all, net->products + p * far_out);
    }
    for (i64 r = 0; r < rows; r++) {
        const float *products = net->products + r * tiles * k->wide;
        CALL(unpatch, products, far_out, tiles, k->wide, bias, y + 2 * r * y_row, y_row);
    }
}

/* The model's weights as the loops read them: [group, taps, 16] of outputs, and for the way back [group, taps, 16] of
 * inputs, the kernel turned, or [out, kernel, kernel, inputs]. */
static void pack(Stage *s, const float *w) {
    const i64 in = s->c.in, out = s->c.out, square = s->c.kernel * s->c.kernel, gap = s->from->gap;
    const float *from = w + s->c.weight;
    if (s->c.bias >= 0) memcpy(s->bias, w + s->c.bias, (size_t)out * 4);
    for (i64 o = 0; o < out && s->winograd; o++)
        for (i64 i = 0; i < in; i++, from += 9) {
            spread_kernel(from, 1, s->packed + (o / 16 * in + i) * 16 + o % 16, s->wide * in);
            spread_kernel(from + 8, -1, s->turned + (i / 16 * out + o) * 16 + i % 16, gap * out);
        }
    for (i64 o = 0; o < out && !s->winograd; o++, from += in * square) {
        float *to = s->packed + o / 16 * s->reach.taps * 16 + o % 16, *row = s->rows_of + o * square * gap;
        for (i64 k = 0; k < square; k++)
            for (i64 i = 0; i < in; i++) to[(k * in + i) * 16] = from[i * square + k];
        if (s->c.source < 0) continue;
        for (i64 i = 0; i < in; i++) {
            float *turned = s->turned + (i / 16 * s->back.taps + o) * 16 + i % 16;
            for (i64 k = 0; k < square; k++)
                if (s->tiled) turned[(square - 1 - k) * out * 16] = from[i * square + k];
                else row[k * gap + i] = from[i * square + k];
        }
    }
}

/* A norm's scale and shift, of what it has seen of `count` numbers a channel; the running statistics move. */
static void judge(const Front *f, Stage *s, const float *w, float *statistics, double count) {
    float *mean = statistics + s->c.running, *square = mean + s->c.out;
    for (i64 o = 0; o < s->c.out; o++) {
        const double here = s->moments[o], variance = s->moments[s->wide + o] / count;
        s->mean[o] = (float)here;
        s->slope[o] = (float)(1 / sqrt(variance + f->epsilon));
        s->scale[o] = w[s->c.scale + o] * s->slope[o];
        s->shift[o] = (float)((double)w[s->c.shift + o] - here * (double)s->scale[o]);
        mean[o] = (float)((1 - f->momentum) * (double)mean[o] + f->momentum * here);
        square[o] = (float)((1 - f->momentum) * (double)square[o] + f->momentum * variance * count / (count - 1));
    }
}

/* A norm's inputs, and their moments, of a picture. */
static void before_norm(Net *net, int level, Stage *s, i64 b) {
    const i64 length = s->across * s->wide, row = s->from->row, tiles = s->across / 2, rows = s->down / 2;
    const float *x = s->from->y + at(s->from, b, s->c.padding);
    float *z = s->z + b * s->down * length;
    for (i64 r = 0, some = 0; r < rows && s->winograd; r += some) {
        some = least(together(tiles, rows), rows - r);
        const float *from = x + 2 * r * row;
        patched(net, level, &s->reach, from, row, s->packed, s->bias, some, tiles, z + 2 * r * length, length);
    }
    for (i64 r = 0; r < s->down; r++, z += length) {
        const double before = (double)((b * s->down + r) * s->across);
        if (!s->winograd) CALL(convolve, &s->reach, x + r * s->c.stride * row, s->packed, s->bias, s->across, z);
        CALL(moments, z, s->across, s->wide, before, s->moments, s->moments + s->wide);
    }
}

static int forward(Net *net, int level, Stage *s, const float *w, float *statistics, i64 rows) {
    const i64 step = s->c.pool ? 2 : 1, length = s->across * s->wide;
    const int norm = s->c.scale >= 0;
    int flaw = 0;
    pack(s, w);
    if (norm) {
        memset(s->moments, 0, (size_t)(2 * s->wide) * sizeof(double));
        for (i64 b = 0; b < rows; b++) before_norm(net, level, s, b);
        judge(net->front, s, w, statistics, (double)(rows * s->down * s->across));
    }
    for (i64 b = 0; b < rows; b++) {
        const float *x = s->from->y + at(s->from, b, s->c.padding), *z = norm ? s->z + b * s->down * length : NULL;
        const float *more = s->more ? s->more->y + at(s->more, b, 0) : NULL;
        float *y = s->to->y + at(s->to, b, 0);
        for (i64 i = 0; i < s->height; i++, y += s->row_out) {
            for (i64 r = 0; r < step; r++) {
                float *row = net->rows + r * length;
                const i64 from = step * i + r;
                const float *inputs = x + from * s->c.stride * s->from->row;
                if (norm) CALL(normed, z + from * length, s->across, s->wide, s->scale, s->shift, row);
                else CALL(convolve, &s->reach, inputs, s->packed, s->bias, s->across, row);
            }
            int32_t *winners = s->c.pool ? s->winners + (b * s->height + i) * s->width * s->wide : NULL;
            flaw |= CALL(finish, s, net->rows, more ? more + i * s->more->row : NULL, y, winners);
        }
    }
    return flaw;
}

int net_forward(Net *net, int level, const float *w, float *statistics, i64 rows, float *features, i64 gap) {
    int flaw = 0;
    for (i64 l = 0; l < net->front->depth; l++) flaw |= forward(net, level, net->stages + l, w, statistics, rows);
    const Stage *s = net->stages + net->front->depth - 1;
    const i64 pixels = s->height * s->width;
    for (i64 b = 0; b < rows; b++) {
        float *to = features + b * gap;
        if (net->front->means) memset(to, 0, (size_t)s->c.out * 4);
        for (i64 p = 0; p < pixels; p++) {
            const float *y = s->to->y + b * s->to->image + p * s->wide;
            if (net->front->means)
                for (i64 o = 0; o < s->c.out; o++) to[o] += y[o] / (float)pixels;
            else
                for (i64 o = 0; o < s->c.out; o++) to[o * pixels + p] = y[o];
        }
    }
    return flaw;
}

/* -- derivatives ---------------------------------------------------------------------------------------------- */

/* A row of the convolution's outputs: its slopes, before the norm's way back. Of two rows, where there is a pool. */
static const float *slopes_of(Net *net, int level, const Stage *s, i64 b, i64 r) {
    const i64 i = s->c.pool ? r / 2 : r;
    const float *dy = s->to->dy + at(s->to, b, 0) + i * s->row_out;
    if (!s->c.pool) return dy;
    if (r % 2 == 0) CALL(spread, s, dy, s->winners + (b * s->height + i) * s->width * s->wide, net->rows);
    return net->rows + r % 2 * s->across * s->wide;
}

/* Adds a picture's to a norm's sums of slopes, and of slopes times how far its inputs are from their mean. */
static void weigh(Net *net, int level, Stage *s, i64 b) {
    const i64 length = s->across * s->wide;
    for (i64 r = 0; r < s->down; r++) {
        const float *z = s->z + (b * s->down + r) * length;
        CALL(co_moments, slopes_of(net, level, s, b, r), z, s->across, s->wide, s->mean, s->sums, s->sums + s->wide);
    }
}

/* A norm's inputs owe scale * slope + rate * (z - mean) + shift, the last two for its mean and variance: put there. */
static void turn(Stage *s, double count) {
    for (i64 o = 0; o < s->c.out; o++) {
        const double sum = s->sums[o], product = s->sums[s->wide + o], scale = s->scale[o], rate = s->slope[o];
        s->slope[o] = (float)(-scale * rate * rate * product / count);
        s->shift[o] = (float)(-scale * sum / count);
        s->sums[s->wide + o] = product * rate;
    }
}

/* A picture's slopes of all outputs of the convolution. */
static float *all_slopes(Net *net, int level, Stage *s, i64 b) {
    const i64 length = s->across * s->wide;
    float *begin = s->dz + s->dz_border * (s->dz_row + s->wide), *to = begin;
    for (i64 r = 0; r < s->down; r++, to += s->dz_row) {
        const float *slopes = slopes_of(net, level, s, b, r), *z = s->z ? s->z + (b * s->down + r) * length : NULL;
        if (z) CALL(norm_back, slopes, z, s->across, s->wide, s->mean, s->scale, s->slope, s->shift, to);
        else memcpy(to, slopes, (size_t)length * 4);
    }
    return begin;
}

/* The derivatives of the weights as Winograd has them, [16, inputs, outputs]. */
static void owe_patches(Net *net, int level, Stage *s, const float *x, const float *dz) {
    const i64 tiles = s->across / 2, rows = s->down / 2, gap = s->from->gap, wide = s->wide;
    for (i64 r = 0, some = 0; r < rows; r += some) {
        some = least(together(tiles, rows), rows - r);
        const i64 all = some * tiles;
        for (i64 i = 0; i < some; i++) {
            const float *from = x + 2 * (r + i) * s->from->row, *slopes = dz + 2 * (r + i) * s->dz_row;
            CALL(patches, from, s->from->row, gap, tiles, net->planes + i * tiles * gap, all * gap);
            CALL(slope_patches, slopes, s->dz_row, wide, tiles, net->products + i * tiles * wide, all * wide);
        }
        for (i64 p = 0; p < 16; p++) {
            const float *from = net->planes + p * all * gap, *slopes = net->products + p * all * wide;
            CALL(owe_rows, &s->reach, from, slopes, 0, 1, all, 0, s->owed + p * gap * wide);
        }
    }
}

/* The derivatives of the inputs: the slopes convolved with the turned kernel. */
static void back_tiled(Net *net, int level, const Stage *s, i64 b) {
    const Slot *from = s->from;
    const i64 tiles = from->width / 2, rows = from->height / 2;
    const float *bias = s->fresh ? net->none : NULL, *dz = s->dz;
    float *dx = from->dy + at(from, b, 0);
    for (i64 r = 0, some = 0; r < rows && s->winograd; r += some) {
        some = least(together(tiles, rows), rows - r);
        float *to = dx + 2 * r * from->row;
        patched(net, level, &s->back, dz + 2 * r * s->dz_row, s->dz_row, s->turned, bias, some, tiles, to, from->row);
    }
    for (i64 i = 0; i < from->height && !s->winograd; i++, dz += s->dz_row, dx += from->row)
        CALL(convolve, &s->back, dz, s->turned, bias, from->width, dx);
}

/* What is left of a picture's slopes, as lists: of each channel, where its inputs begin; of each pixel of the
 * convolution's outputs, where the weights of its channels begin. */
static void list(Net *net, const Stage *s, const float *dy, i64 row, i64 height, i64 width, const int32_t *winners) {
    const i64 step = winners ? 2 : 1, wide = s->wide, room = height * width, hop = s->reach.hop;
    const i64 weights = s->c.kernel * s->c.kernel * s->from->gap, down = s->c.stride * s->from->row;
    i64 *of_channel = net->counts, *of_pixel = net->counts + wide;
    memset(net->counts, 0, (size_t)(wide + s->down * s->across) * sizeof(i64));
    for (i64 i = 0; i < height; i++, dy += row)
        for (i64 j = 0; j < width; j++, winners += winners ? wide : 0)
            for (i64 o = 0; o < s->c.out; o++) {
                const float by = dy[j * wide + o];
                const i64 q = winners ? winners[o] : 0, r = step * i + (q >> 1), column = step * j + (q & 1);
                const i64 pixel = r * s->across + column;
                if (!s->dense) net->by_channel[o * room + of_channel[o]] = (Owed){r * down + column * hop, by};
                net->by_pixel[pixel * wide + of_pixel[pixel]] = (Owed){o * weights, by};
                of_channel[o] += by != 0, of_pixel[pixel] += by != 0;
            }
}

/* The derivatives of the inputs, and where these are not dense, of the weights, by lists. */
static void back_listed(Net *net, int level, Stage *s, i64 b, const float *x, const float *dz) {
    const i64 kernel = s->c.kernel, length = kernel * s->from->gap, row = s->from->row, room = s->height * s->width;
    const int32_t *winners = s->c.pool ? s->winners + b * room * s->wide : NULL;
    if (s->dense) list(net, s, dz, s->dz_row, s->down, s->across, NULL);
    else list(net, s, dz, s->row_out, s->height, s->width, winners);
    for (i64 o = 0; o < s->c.out && !s->dense; o++)
        for (i64 ky = 0; ky < kernel; ky++) {
            float *into = s->owed + (o * kernel + ky) * length;
            CALL(gather_row, into, x + ky * row, net->by_channel + o * room, net->counts[o], length);
        }
    if (s->fresh) memset(s->from->dy + b * s->from->image, 0, (size_t)s->from->image * 4);
    float *dx = s->from->dy + at(s->from, b, s->c.padding);
    for (i64 ky = 0; ky < kernel; ky++)
        for (i64 i = 0; i < s->down; i++)
            for (i64 j = 0; j < s->across; j++) {
                const i64 pixel = i * s->across + j, count = net->counts[s->wide + pixel];
                float *into = dx + (i * s->c.stride + ky) * row + j * s->reach.hop;
                CALL(gather_row, into, s->rows_of + ky * length, net->by_pixel + pixel * s->wide, count, length);
            }
}

/* Adds a picture's derivatives of the weights to `owed`, and those of the inputs to theirs. */
static void back(Net *net, int level, Stage *s, i64 b) {
    const i64 down = s->c.stride * s->from->row;
    const float *x = s->from->y + at(s->from, b, s->c.padding);
    const float *dz = s->dense ? all_slopes(net, level, s, b) : s->to->dy + at(s->to, b, 0);
    if (s->winograd) owe_patches(net, level, s, x, dz);
    else if (s->dense) CALL(owe_rows, &s->reach, x, dz, s->dz_row, s->down, s->across, down, s->owed);
    if (s->c.source < 0) return;
    if (s->tiled) back_tiled(net, level, s, b);
    else back_listed(net, level, s, b, x, dz);
}

/* Adds what is owed in the layout of the loops to that in the model's. */
static void settle(const Stage *s, float by, float *g) {
    const i64 in = s->c.in, square = s->c.kernel * s->c.kernel, gap = s->from->gap, across = s->dense ? s->wide : 1;
    for (i64 o = 0; o < s->c.out; o++) {
        float *to = g + s->c.weight + o * in * square;
        const float *from = s->dense ? s->owed + o : s->owed + o * square * gap;
        for (i64 i = 0; i < in; i++) {
            if (s->winograd) gather_kernel(s->owed + i * s->wide + o, gap * s->wide, by, to + i * square);
            else
                for (i64 k = 0; k < square; k++) to[i * square + k] += by * from[(k * gap + i) * across];
        }
        if (s->c.scale >= 0) {
            g[s->c.scale + o] += by * (float)s->sums[s->wide + o];
            g[s->c.shift + o] += by * (float)s->sums[o];
        } else if (s->c.bias >= 0) g[s->c.bias + o] += by * s->bias_owed[o]; /* a norm takes its bias away again */
    }
}

void net_backward(Net *net, int level, const float *slopes, i64 gap, i64 rows, float by, float *g) {
    const Front *f = net->front;
    Stage *last = net->stages + f->depth - 1;
    const i64 pixels = last->height * last->width;
    for (i64 b = 0; b < rows; b++)
        for (i64 p = 0; p < pixels; p++) {
            float *dy = last->to->dy + b * last->to->image + p * last->wide;
            const float *from = slopes + b * gap;
            for (i64 o = 0; o < last->c.out; o++) dy[o] = f->means ? from[o] / (float)pixels : from[o * pixels + p];
        }
    for (Stage *s = last; s >= net->stages; s--) {
        const i64 each = s->winograd ? 16 : s->c.kernel * s->c.kernel;
        memset(s->owed, 0, (size_t)(each * s->wide * s->from->gap) * 4);
        memset(s->bias_owed, 0, (size_t)s->wide * 4);
        if (s->c.scale >= 0) memset(s->sums, 0, (size_t)(2 * s->wide) * sizeof(double));
        for (i64 b = 0; b < rows; b++) {
            const i64 here = at(s->to, b, 0);
            const i64 row = s->more ? s->more->row : 0;
            float *more = row ? s->more->dy + at(s->more, b, 0) : net->none;
            CALL(bar, s, s->to->y + here, s->to->dy + here, s->bias_owed, more, row, s->fresh_more);
            if (s->c.scale >= 0) weigh(net, level, s, b);
        }
        if (s->c.scale >= 0) turn(s, (double)(rows * s->down * s->across));
        for (i64 b = 0; b < rows; b++) back(net, level, s, b);
        settle(s, by, g);
    }
}
