/* Convolutions before a chain of linear layers, forward and backward. convolve.h holds the loops.
 *
 * Unlike native.c's kernels these need not give the bits of torch: training is one client's own affair. Pictures are
 * [height, width, channels] here, a stage's outputs with channels padded by zeros to groups of 16 and with a border of
 * the zeros that the next convolution adds. Behind a pool a derivative is zero at three positions of four, and behind
 * ReLU at some more: what is left are lists, and each entry of a list moves whole rows of neighbours.
 */

#include "convnet.h"
#include <stdlib.h>
#include <string.h>

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

static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
static inline i64 most(i64 a, i64 b) { return a > b ? a : b; }

/* `by` times the row of floats that begins at `at`. */
typedef struct { i64 at; float by; } Owed;

typedef struct {
    Conv c;
    i64 gap, row, image;                        /* floats of a pixel, a row and a picture of its inputs, border included */
    i64 down, across, height, width;            /* pixels of the convolution's outputs, and of what leaves the stage */
    i64 wide, border, row_out, image_out;       /* padded channels of the outputs; the next one's padding */
    i64 taps, run, runs;                        /* weights of an output: kernel times `runs` runs of neighbours in memory */
    float *packed, *rows_of, *owed, *bias, *bias_owed;
    float *y, *dy;
    int32_t *winners;
} Stage;

struct Net {
    const Front *front;
    i64 size, gap, row, image; /* of the pictures, border included */
    float *x, *rows;
    Owed *by_channel, *by_pixel;
    i64 *counts;
    Stage *stages;
    float *room;
};

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
#define LEVEL _avx512
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2"))), apply_to = function)
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
#define CALL(name, ...) name##_plain(__VA_ARGS__)
#endif

static i64 padded(i64 n) { return (n + 15) / 16 * 16; }

Net *net_open(const Front *front, i64 size) {
    Net *net = calloc(1, sizeof *net);
    Stage *stages = calloc((size_t)front->depth, sizeof *stages);
    if (!net || !stages) return free(net), free(stages), NULL;
    const Conv *convs = front->convs;
    *net = (Net){.front = front, .size = size, .gap = front->channels, .stages = stages};
    net->row = (front->width + 2 * convs->padding) * net->gap;
    net->image = (front->height + 2 * convs->padding) * net->row;
    i64 gap = net->gap, row = net->row, image = net->image, height = front->height, width = front->width;
    i64 floats = padded(size * image), rows = 0, channel = 0, pixel = 0, pixels = 0, widest = 0;
    for (i64 l = 0; l < front->depth; l++) {
        Stage *s = stages + l;
        const Conv *c = convs + l;
        i64 step = c->pool ? 2 : 1;
        *s = (Stage){.c = *c, .gap = gap, .row = row, .image = image, .wide = padded(c->out)};
        s->height = (height + 2 * c->padding - c->kernel + 1) / step, s->width = (width + 2 * c->padding - c->kernel + 1) / step;
        s->down = s->height * step, s->across = s->width * step;
        s->border = l + 1 < front->depth ? convs[l + 1].padding : 0;
        s->row_out = (s->width + 2 * s->border) * s->wide, s->image_out = (s->height + 2 * s->border) * s->row_out;
        s->run = gap == c->in ? c->kernel * c->in : c->in, s->runs = gap == c->in ? 1 : c->kernel;
        s->taps = c->kernel * c->kernel * c->in;
        floats += s->wide * (s->taps + 2 * c->kernel * c->kernel * gap + 2) + size * (2 * s->image_out + s->height * s->width * s->wide);
        i64 two = step * s->across * s->wide, in_channel = s->wide * s->height * s->width, in_pixel = s->down * s->across * s->wide;
        rows = most(rows, two);
        channel = most(channel, in_channel);
        pixel = most(pixel, in_pixel);
        pixels = most(pixels, s->down * s->across);
        widest = most(widest, s->wide);
        gap = s->wide, row = s->row_out, image = s->image_out, height = s->height, width = s->width;
    }
    float *room = net->room = calloc((size_t)(floats + rows + 16), 4);
    net->by_channel = malloc((size_t)(channel + pixel) * sizeof(Owed));
    net->counts = malloc((size_t)(widest + pixels) * sizeof(i64));
    if (!room || !net->by_channel || !net->counts) return net_close(net), NULL;
    net->by_pixel = net->by_channel + channel;
    room += (16 - (uintptr_t)room / 4 % 16) % 16;
    net->rows = room, room += rows;
    net->x = room, room += padded(size * net->image);
    for (i64 l = 0; l < front->depth; l++) {
        Stage *s = stages + l;
        i64 spread = s->wide * s->c.kernel * s->c.kernel * s->gap, out = size * s->image_out;
        s->packed = room, room += s->wide * s->taps;
        s->rows_of = room, room += spread;
        s->owed = room, room += spread;
        s->bias = room, room += s->wide;
        s->bias_owed = room, room += s->wide;
        s->y = room, room += out;
        s->dy = room, room += out;
        s->winners = (int32_t *)room, room += size * s->height * s->width * s->wide;
    }
    return net;
}

void net_close(Net *net) {
    free(net->room), free(net->by_channel), free(net->counts), free(net->stages), free(net);
}

void net_take(Net *net, i64 b, const float *picture) {
    const Front *f = net->front;
    i64 edge = f->convs->padding;
    float *to = net->x + b * net->image + edge * net->row + edge * net->gap;
    for (i64 c = 0; c < f->channels; c++)
        for (i64 i = 0; i < f->height; i++)
            for (i64 j = 0; j < f->width; j++) to[i * net->row + j * net->gap + c] = *picture++;
}

/* The model's weights as the loops read them: [group, taps, 16], and [out, kernel, kernel, padded in]. */
static void pack(Stage *s, const float *w, int first) {
    const i64 in = s->c.in, square = s->c.kernel * s->c.kernel;
    const float *from = w + s->c.weight;
    for (i64 o = 0; o < s->c.out; o++, from += in * square) {
        float *to = s->packed + o / 16 * s->taps * 16 + o % 16, *row = s->rows_of + o * square * s->gap;
        for (i64 k = 0; k < square; k++)
            for (i64 i = 0; i < in; i++) to[(k * in + i) * 16] = from[i * square + k];
        if (first) continue;
        for (i64 k = 0; k < square; k++)
            for (i64 i = 0; i < in; i++) row[k * s->gap + i] = from[i * square + k];
    }
    if (s->c.bias >= 0) memcpy(s->bias, w + s->c.bias, (size_t)s->c.out * 4);
}

int net_forward(Net *net, int level, const float *w, i64 rows, float *features, i64 gap) {
    (void)level;
    const float *x = net->x;
    int flaw = 0;
    for (i64 l = 0; l < net->front->depth; l++) {
        Stage *s = net->stages + l;
        const i64 step = s->c.pool ? 2 : 1;
        pack(s, w, l == 0);
        for (i64 b = 0; b < rows; b++) {
            float *y = s->y + b * s->image_out + s->border * (s->row_out + s->wide);
            int32_t *winners = s->winners + b * s->height * s->width * s->wide;
            for (i64 i = 0; i < s->height; i++, y += s->row_out, winners += s->width * s->wide) {
                const float *from = x + b * s->image + step * i * s->row;
                for (i64 r = 0; r < step; r++) CALL(convolve, s, from + r * s->row, net->rows + r * s->across * s->wide);
                flaw |= CALL(settle, s, net->rows, y, winners);
            }
        }
        x = s->y;
    }
    const Stage *s = net->stages + net->front->depth - 1;
    for (i64 b = 0; b < rows; b++)
        for (i64 p = 0; p < s->height * s->width; p++)
            for (i64 o = 0; o < s->c.out; o++)
                features[b * gap + o * s->height * s->width + p] = s->y[b * s->image_out + p * s->wide + o];
    return flaw;
}

/* The derivatives of the first stage's weights, picture by picture and row by row. */
static void first(Net *net, int level, i64 b) {
    (void)level;
    const Stage *s = net->stages;
    const i64 step = s->c.pool ? 2 : 1;
    const float *x = net->x + b * net->image, *dy = s->dy + b * s->image_out + s->border * (s->row_out + s->wide);
    const int32_t *winners = s->winners + b * s->height * s->width * s->wide;
    for (i64 i = 0; i < s->height; i++, dy += s->row_out, winners += s->width * s->wide) {
        if (s->c.pool) CALL(spread, s, dy, winners, net->rows);
        for (i64 r = 0; r < step; r++)
            CALL(owe_first, s, x + (step * i + r) * s->row, s->c.pool ? net->rows + r * s->across * s->wide : dy, s->owed);
    }
}

/* What is left of a picture's derivatives, as lists: of each channel, where its inputs begin; of each pixel of the
 * convolution's outputs, where the weights of its channels begin. */
static void list(Net *net, const Stage *s, i64 b) {
    const i64 step = s->c.pool ? 2 : 1, wide = s->wide, room = s->height * s->width, weights = s->c.kernel * s->c.kernel * s->gap;
    const float *dy = s->dy + b * s->image_out + s->border * (s->row_out + wide);
    const int32_t *winners = s->winners + b * room * wide;
    i64 *of_channel = net->counts, *of_pixel = net->counts + wide;
    memset(net->counts, 0, (size_t)(wide + s->down * s->across) * sizeof(i64));
    for (i64 i = 0; i < s->height; i++, dy += s->row_out)
        for (i64 j = 0; j < s->width; j++, winners += wide)
            for (i64 o = 0; o < s->c.out; o++) {
                const float by = dy[j * wide + o];
                const i64 q = s->c.pool ? winners[o] : 0, down = step * i + (q >> 1), across = step * j + (q & 1);
                const i64 pixel = down * s->across + across;
                net->by_channel[o * room + of_channel[o]] = (Owed){down * s->row + across * s->gap, by};
                net->by_pixel[pixel * wide + of_pixel[pixel]] = (Owed){o * weights, by};
                of_channel[o] += by != 0, of_pixel[pixel] += by != 0;
            }
}

static void rest(Net *net, int level, const Stage *s, i64 b, const float *x, float *dx) {
    (void)level;
    const i64 length = s->c.kernel * s->gap, room = s->height * s->width;
    list(net, s, b);
    for (i64 o = 0; o < s->c.out; o++)
        for (i64 ky = 0; ky < s->c.kernel; ky++)
            CALL(gather_row, s->owed + (o * s->c.kernel + ky) * length, x + ky * s->row, net->by_channel + o * room, net->counts[o], length);
    memset(dx, 0, (size_t)s->image * 4);
    for (i64 ky = 0; ky < s->c.kernel; ky++)
        for (i64 i = 0; i < s->down; i++)
            for (i64 j = 0; j < s->across; j++) {
                const i64 pixel = i * s->across + j;
                CALL(gather_row, dx + (i + ky) * s->row + j * s->gap, s->rows_of + ky * length, net->by_pixel + pixel * s->wide, net->counts[s->wide + pixel], length);
            }
}

/* Adds what is owed in the layout of the loops to that in the model's. */
static void settle_up(const Stage *s, int first, float by, float *g) {
    const i64 in = s->c.in, square = s->c.kernel * s->c.kernel;
    for (i64 o = 0; o < s->c.out; o++) {
        float *to = g + s->c.weight + o * in * square;
        const float *from = first ? s->owed + o : s->owed + o * square * s->gap;
        const i64 across = first ? s->wide : 1;
        for (i64 i = 0; i < in; i++)
            for (i64 k = 0; k < square; k++) to[i * square + k] += by * from[(k * s->gap + i) * across];
    }
    if (s->c.bias >= 0)
        for (i64 o = 0; o < s->c.out; o++) g[s->c.bias + o] += by * s->bias_owed[o];
}

void net_backward(Net *net, int level, const float *slopes, i64 gap, i64 rows, float by, float *g) {
    Stage *last = net->stages + net->front->depth - 1;
    for (i64 b = 0; b < rows; b++)
        for (i64 p = 0; p < last->height * last->width; p++)
            for (i64 o = 0; o < last->c.out; o++)
                last->dy[b * last->image_out + p * last->wide + o] = slopes[b * gap + o * last->height * last->width + p];
    for (Stage *s = last; s >= net->stages; s--) {
        Stage *before = s - 1;
        const int is_first = s == net->stages;
        memset(s->owed, 0, (size_t)(s->wide * s->c.kernel * s->c.kernel * s->gap) * 4);
        memset(s->bias_owed, 0, (size_t)s->wide * 4);
        for (i64 b = 0; b < rows; b++) {
            const i64 at = b * s->image_out + s->border * (s->row_out + s->wide);
            CALL(bar, s, s->y + at, s->dy + at, s->bias_owed);
            if (is_first) first(net, level, b);
            else rest(net, level, s, b, before->y + b * before->image_out, before->dy + b * before->image_out);
        }
        settle_up(s, is_first, by, g);
    }
}
