/* The hot loops of thinwire in C, behind plain functions that Python calls with ctypes.
 *
 * loops.h holds the loops themselves and is compiled once for each level of the instruction set; here are
 * the choice between levels at run time, the threads, and the functions that put the loops together.
 *
 * Every result is bit for bit that of the reference in torch: one order for every sum, no fused multiply-add
 * (-ffp-contract=off), no -ffast-math. Splitting work over threads never changes the order of a sum.
 * NaN gives some value and no wrong access. Callers have checked lengths; what comes from a message is checked here.
 */

#define _GNU_SOURCE
#include "convnet.h"
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#define X86 1
#endif

#ifndef TW_SOURCE
#define TW_SOURCE 0
#endif

#define BLOCK (1 << 15)    /* floats of a Hadamard transform that stay in the second cache: 128 KiB */
#define TALLEST 512        /* rows of a tile of columns, */
#define TILE (1 << 16)     /* and its floats: 256 KiB */
#define SUM_LANES 64       /* signs.py: LANES */
#define SUM_ROWS 64
#define PIECE (1 << 16)    /* fewer entries than this are not worth a thread of their own */
#define MOST_THREADS 64
#define MOST_ROWS 64       /* sketch.py */

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint8_t u8;

static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
static inline i64 most(i64 a, i64 b) { return a > b ? a : b; }

/* 32 random bits for entry i of a key's stream: counter.py, bits. */
static inline u32 mix(u32 i, u32 low, u32 high) {
    u32 x = i + low;
    x = (x ^ x >> 16) * 0x21F0AAADu;
    x ^= high;
    x = (x ^ x >> 15) * 0x735A2D97u;
    return x ^ x >> 15;
}

static inline u32 word(float x) { u32 w; memcpy(&w, &x, 4); return w; }
static inline float real(u32 w) { float x; memcpy(&x, &w, 4); return x; }

/* What Fastfood draws. */
typedef struct {
    u32 low, high;                      /* the key of signs and magnitudes */
    u32 times[3], plus[3], fold, all;   /* the permutation of the integers up to `all` */
    const float *table;
} Draw;

/* How a step is bent: null, or as many floats as the model has. */
typedef struct {
    const float *anchor, *offset, *mask, *part;
    float *velocity;
    float lr, decay, prox, momentum;
} Bend;

/* -- the loops, at each level -------------------------------------------------------------------------------- */

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define FN(name) JOIN(name, LEVEL)

#define LEVEL _plain
#include "loops.h"
#undef LEVEL

#ifdef X86
#define AVX2 1
#define LEVEL _avx2
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")
#endif
#include "loops.h"
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
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,lzcnt,popcnt,prefer-vector-width=512")
#endif
#include "loops.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef LEVEL
#undef AVX512
#endif

static int level = 0; /* 0 plain, 1 AVX2, 2 AVX-512 */

#ifdef X86
#define CALL(name, ...) \
    (level == 2 ? name##_avx512(__VA_ARGS__) : level == 1 ? name##_avx2(__VA_ARGS__) : name##_plain(__VA_ARGS__))
#else
#define CALL(name, ...) name##_plain(__VA_ARGS__)
#endif

/* The highest level up to `wanted` that this processor has. */
int tw_use(int wanted) {
    int best = 0;
#ifdef X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt")) best = 1;
    if (best && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        best = 2;
#endif
    level = wanted < best ? wanted : best;
    return level;
}

/* Of what this was compiled: the check sum of the source. */
u32 tw_source(void) { return (u32)TW_SOURCE; }

/* Asks for large pages, where a fresh result is so long that touching it page by page costs more than filling it. */
void tw_large(void *start, i64 bytes) {
#ifdef MADV_HUGEPAGE
    uintptr_t page = 1 << 21, from = ((uintptr_t)start + page - 1) & ~(page - 1), to = ((uintptr_t)start + (uintptr_t)bytes) & ~(page - 1);
    if (to > from) madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
    (void)start, (void)bytes;
#endif
}

/* From now on memory that was freed is kept for what comes next, instead of given back and faulted in again. */
void tw_keep_memory(void) {
#if defined(__GLIBC__)
    mallopt(M_MMAP_THRESHOLD, 1 << 25); /* its highest value */
    mallopt(M_TRIM_THRESHOLD, 1 << 28);
    mallopt(M_TOP_PAD, 1 << 24);
#endif
}

/* -- threads ------------------------------------------------------------------------------------------------- */

typedef void (*Run)(void *job, int part, int parts);
typedef struct { Run run; void *job; int part, parts; } Task;

static void *task(void *given) {
    Task *t = given;
    t->run(t->job, t->part, t->parts);
    return 0;
}

/* All parts, the first in this thread. A part whose thread cannot be had runs here too. */
static void in_parts(Run run, void *job, int parts) {
    pthread_t threads[MOST_THREADS];
    Task tasks[MOST_THREADS];
    int started[MOST_THREADS];
    for (int i = 1; i < parts; i++) {
        tasks[i] = (Task){run, job, i, parts};
        started[i] = pthread_create(&threads[i], 0, task, &tasks[i]) == 0;
    }
    run(job, 0, parts);
    for (int i = 1; i < parts; i++) {
        if (started[i]) pthread_join(threads[i], 0);
        else run(job, i, parts);
    }
}

static int parts_of(i64 n, int threads) { return (int)most(1, least(least(threads, MOST_THREADS), n / PIECE)); }

/* Where a part starts: at a multiple of `unit`. */
static i64 cut(i64 n, int part, int parts, i64 unit) {
    return part >= parts ? n : (i64)((n / unit) * (double)part / parts) * unit;
}

#define RANGE(n, unit) i64 start = cut(n, part, parts, unit), stop = cut(n, part + 1, parts, unit)

/* -- select.py ----------------------------------------------------------------------------------------------- */

#define HIGH (1 << 15)
#define LOW (1 << 16)
#define MAGNITUDE 0x7FFFFFFFu

typedef struct {
    const float *x;
    i64 n, *out;
    u32 *high, *low;    /* counts by the upper 15 and the lower 16 bits of the magnitude, a row for each part */
    u32 floor, bin, threshold, width, below; /* below: how much less than the k-th is wanted too */
    i64 *counts, *quota, *at;
    int counted;        /* whether `counts` has how many magnitudes but zeros reach `threshold - below` */
} Select;

static void count_high(void *job, int part, int parts) {
    Select *s = job;
    RANGE(s->n, 64);
    u32 *row = s->high + (i64)part * HIGH;
    memset(row, 0, HIGH * sizeof *row);
    CALL(count_high, s->x + start, stop - start, s->floor, row);
}

static void count_low(void *job, int part, int parts) {
    Select *s = job;
    RANGE(s->n, 64);
    u32 *row = s->low + (i64)part * LOW;
    memset(row, 0, LOW * sizeof *row);
    CALL(count_low, s->x + start, stop - start, s->bin, row);
}

static void fill_top(void *job, int part, int parts) {
    Select *s = job;
    RANGE(s->n, 64);
    CALL(fill, s->x + start, stop - start, start, s->threshold, MAGNITUDE - s->threshold, s->quota[part],
         s->out + s->at[part]);
}

/* `find` for a few: the threshold eight bits at a time, without clearing large tables. */
static u32 find_few(const float *x, i64 n, i64 k, i64 *larger, i64 *equal) {
    u32 threshold = 0, known = 0;
    i64 left = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        u32 counts[256] = {0}, bin = 255;
        for (i64 i = 0; i < n; i++) {
            u32 magnitude = word(x[i]) & MAGNITUDE;
            if ((magnitude & known) == threshold) counts[magnitude >> shift & 255]++;
        }
        for (; left > counts[bin]; bin--) left -= counts[bin];
        threshold |= bin << shift;
        known |= (u32)255 << shift;
        *equal = counts[bin];
    }
    *larger = k - left;
    return threshold;
}

/* The k-th largest magnitude, as bits in s->threshold, and how many of each part are larger and equal; -1: no memory.
 * Count by the upper bits, then by the lower ones of those in the bin where the k-th lies: twice through x and 384 KiB
 * a thread. A sample says which entries the first count may leave out; if it turns out to be wrong, all are counted. */
static int find(Select *s, i64 k, i64 *larger, i64 *equal, int threads) {
    i64 n = s->n;
    if (n <= 4096) {
        s->threshold = find_few(s->x, n, k, larger, equal);
        return 0;
    }
    int parts = parts_of(n, threads);
    u32 *counts = malloc(((size_t)parts * (HIGH + LOW) + HIGH) * sizeof *counts);
    if (!counts) return -1;
    s->high = counts, s->low = counts + (i64)parts * HIGH;
    u32 *sampled = s->low + (i64)parts * LOW;
    const i64 sample = 1 << 16;
    if (n >= 8 * sample) {
        double expected = (double)k / n * sample;
        i64 rank = (i64)(expected + 5 * __builtin_sqrt(expected) + 16), seen = 0;
        memset(sampled, 0, HIGH * sizeof *sampled);
        for (i64 i = 0, step = n / sample; i < sample; i++) sampled[(word(s->x[i * step + i % step]) & MAGNITUDE) >> 16]++;
        u32 bin = HIGH;
        while (bin > 0 && seen < rank) seen += sampled[--bin];
        s->floor = bin << 16;
    }
    i64 above, bin;
    for (;;) {
        in_parts(count_high, s, parts);
        above = 0;
        for (bin = HIGH - 1; bin >= 0; bin--) {
            i64 here = 0;
            for (int p = 0; p < parts; p++) here += s->high[(i64)p * HIGH + bin];
            if (above + here >= k) break;
            above += here;
        }
        if (bin >= (i64)(s->floor >> 16)) break;
        s->floor = 0;
    }
    s->bin = (u32)bin;
    in_parts(count_low, s, parts);
    i64 low;
    for (low = LOW - 1; low > 0; low--) {
        i64 here = 0;
        for (int p = 0; p < parts; p++) here += s->low[(i64)p * LOW + low];
        if (above + here >= k) break;
        above += here;
    }
    s->threshold = (u32)bin << 16 | (u32)low;
    for (int p = 0; p < parts; p++) {
        larger[p] = 0, equal[p] = s->low[(i64)p * LOW + low];
        for (i64 b = bin + 1; b < HIGH; b++) larger[p] += s->high[(i64)p * HIGH + b];
        for (i64 b = low + 1; b < LOW; b++) larger[p] += s->low[(i64)p * LOW + b];
    }
    i64 first = bin == 0 ? most(1, low - s->below) : low - s->below; /* in the first bin lies zero; below 0 another */
    s->counted = s->counts && first >= 0;
    for (int p = 0; s->counted && p < parts; p++) {
        s->counts[p] = larger[p];
        for (i64 b = first; b <= low; b++) s->counts[p] += s->low[(i64)p * LOW + b];
    }
    free(counts);
    return 0;
}

/* The positions of the k largest magnitudes; of those equal to the least of them the first ones are taken. */
int tw_top_k(const float *x, i64 n, i64 k, i64 *out, int threads) {
    if (k == 0) return 0;
    int parts = parts_of(n, threads);
    i64 larger[MOST_THREADS], equal[MOST_THREADS], quota[MOST_THREADS], at[MOST_THREADS];
    Select s = {.x = x, .n = n, .out = out, .quota = quota, .at = at};
    if (find(&s, k, larger, equal, threads)) return -1;
    i64 left = k, place = 0;
    for (int p = 0; p < parts; p++) left -= larger[p];
    for (int p = 0; p < parts; p++) {
        quota[p] = equal[p] <= left ? INT64_MAX : left;
        at[p] = place;
        place += larger[p] + least(equal[p], left);
        left -= least(equal[p], left);
    }
    in_parts(fill_top, &s, parts);
    return 0;
}

static void count_between(void *job, int part, int parts) {
    Select *s = job;
    RANGE(s->n, 64);
    s->counts[part] = CALL(count_between, s->x + start, stop - start, s->threshold, s->width);
}

static void fill_between(void *job, int part, int parts) {
    Select *s = job;
    RANGE(s->n, 64);
    i64 at = 0;
    for (int p = 0; p < part; p++) at += s->counts[p];
    CALL(fill, s->x + start, stop - start, start, s->threshold, s->width, INT64_MAX, s->out + at);
}

/* How many magnitudes lie from `low` to `low + width`, and, with `counts` from that, where. */
i64 tw_count(const float *x, i64 n, u32 low, u32 width, i64 *counts, int threads) {
    Select s = {.x = x, .n = n, .threshold = low, .width = width, .counts = counts};
    int parts = parts_of(n, threads);
    in_parts(count_between, &s, parts);
    i64 total = 0;
    for (int p = 0; p < parts; p++) total += counts[p];
    return total;
}

/* How many magnitudes but zeros reach the k-th largest less `below`, which goes to `low`, and, with `counts` from that,
 * where they are. -1: no memory. Only where that begins in another bin than the k-th is there a pass to count them. */
i64 tw_count_largest(const float *x, i64 n, i64 k, u32 below, u32 *low, i64 *counts, int threads) {
    i64 larger[MOST_THREADS], equal[MOST_THREADS], total = 0;
    Select s = {.x = x, .n = n, .below = below, .counts = counts};
    if (find(&s, k, larger, equal, threads)) return -1;
    *low = s.threshold > below ? s.threshold - below : 1;
    if (!s.counted) return tw_count(x, n, *low, MAGNITUDE - *low, counts, threads);
    for (int p = 0; p < parts_of(n, threads); p++) total += counts[p];
    return total;
}

void tw_fill(const float *x, i64 n, u32 low, u32 width, i64 *counts, i64 *out, int threads) {
    Select s = {.x = x, .n = n, .threshold = low, .width = width, .counts = counts, .out = out};
    in_parts(fill_between, &s, parts_of(n, threads));
}

/* -- signs.py ------------------------------------------------------------------------------------------------ */

typedef struct { const float *x; const u8 *bits; u8 *packed; float *out, scale; double *sums; i64 n; } Signs;

static void pack_signs(void *job, int part, int parts) {
    Signs *s = job;
    RANGE(s->n, 64);
    CALL(pack_signs, s->x + start, stop - start, s->packed + start / 8);
}

void tw_pack_signs(const float *x, i64 n, u8 *packed, int threads) {
    Signs s = {.x = x, .n = n, .packed = packed};
    in_parts(pack_signs, &s, parts_of(n, threads));
}

static void unpack_signs(void *job, int part, int parts) {
    Signs *s = job;
    RANGE(s->n, 64);
    CALL(unpack_signs, s->bits + start / 8, stop - start, s->scale, s->out + start);
}

void tw_unpack_signs(const u8 *bits, i64 n, float scale, float *out, int threads) {
    Signs s = {.bits = bits, .n = n, .scale = scale, .out = out};
    in_parts(unpack_signs, &s, parts_of(n, threads));
}

static void partial_sums(void *job, int part, int parts) {
    Signs *s = job;
    RANGE(s->n, SUM_LANES * SUM_ROWS);
    CALL(partial_sums, s->x + start, stop - start, s->sums + start / (SUM_LANES * SUM_ROWS));
}

void tw_partial_sums(const float *x, i64 n, double *sums, int threads) {
    Signs s = {.x = x, .n = n, .sums = sums};
    in_parts(partial_sums, &s, parts_of(n, threads));
}

/* -- magnitude.py -------------------------------------------------------------------------------------------- */

typedef struct { const float *x; i64 n; u32 tops[MOST_THREADS]; } Magnitude;

static void magnitude(void *job, int part, int parts) {
    Magnitude *m = job;
    RANGE(m->n, 64);
    m->tops[part] = CALL(magnitude, m->x + start, stop - start);
}

float tw_magnitude(const float *x, i64 n, int threads) {
    Magnitude m = {.x = x, .n = n};
    int parts = parts_of(n, threads);
    in_parts(magnitude, &m, parts);
    u32 top = 0;
    for (int part = 0; part < parts; part++) top = m.tops[part] > top ? m.tops[part] : top;
    float found;
    memcpy(&found, &top, 4);
    return found;
}

/* -- quantize.py --------------------------------------------------------------------------------------------- */

typedef struct {
    const float *x;
    const u8 *packed;
    u8 *codes;
    float *out, lift, factor, step;
    i64 n;
    int levels, bits;
    u32 low, high;
    int largest[MOST_THREADS];
} Quantize;

static void quantize(void *job, int part, int parts) {
    Quantize *q = job;
    RANGE(q->n, 64);
    CALL(quantize, q->x + start, stop - start, start, q->lift, q->factor, q->levels, q->bits, q->low, q->high,
         q->codes + start / 8 * q->bits);
}

void tw_quantize(const float *x, i64 n, float lift, float factor, int levels, int bits, u64 key, u8 *codes, int threads) {
    Quantize q = {.x = x, .n = n, .lift = lift, .factor = factor, .levels = levels, .bits = bits, .codes = codes};
    q.low = (u32)key, q.high = (u32)(key >> 32);
    in_parts(quantize, &q, parts_of(n, threads));
}

static void dequantize(void *job, int part, int parts) {
    Quantize *q = job;
    RANGE(q->n, 64);
    q->largest[part] = CALL(dequantize, q->packed + start / 8 * q->bits, stop - start, q->levels, q->bits, q->step,
                            q->out + start);
}

/* The largest code that was found. */
int tw_dequantize(const u8 *packed, i64 n, int levels, int bits, float step, float *out, int threads) {
    Quantize q = {.packed = packed, .n = n, .levels = levels, .bits = bits, .step = step, .out = out};
    int parts = parts_of(n, threads), largest = 0;
    in_parts(dequantize, &q, parts);
    for (int p = 0; p < parts; p++) largest = q.largest[p] > largest ? q.largest[p] : largest;
    return largest;
}

/* -- sketch.py ----------------------------------------------------------------------------------------------- */

typedef struct { const float *x; float *sketch, *out; i64 n, rows, cols; const u64 *keys; } Sketch;

/* Whole rows as far as they go round; each of the rest is shared by columns. */
static void count_sketch(void *job, int part, int parts) {
    Sketch *s = job;
    i64 whole = s->rows - s->rows % parts;
    i64 from = s->cols * part / parts, to = s->cols * (part + 1) / parts;
    for (i64 r = 0; r < s->rows; r++) {
        if (r < whole && r % parts != part) continue;
        u32 low = (u32)s->keys[r], high = (u32)(s->keys[r] >> 32);
        i64 first = r < whole ? 0 : from, last = r < whole ? s->cols : to;
        CALL(count_row, s->x, s->n, s->cols, low, high, s->sketch + r * s->cols, first, last);
    }
}

void tw_count_sketch(const float *x, i64 n, i64 rows, i64 cols, const u64 *keys, float *sketch, int threads) {
    Sketch s = {.x = x, .n = n, .rows = rows, .cols = cols, .keys = keys, .sketch = sketch};
    memset(sketch, 0, (size_t)(rows * cols) * sizeof *sketch);
    in_parts(count_sketch, &s, parts_of(n, threads));
}

static void estimate(void *job, int part, int parts) {
    Sketch *s = job;
    RANGE(s->n, 64);
    CALL(estimate, s->sketch, s->rows, s->cols, s->keys, start, stop, s->out);
}

void tw_estimate(float *sketch, i64 n, i64 rows, i64 cols, const u64 *keys, float *out, int threads) {
    Sketch s = {.sketch = sketch, .n = n, .rows = rows, .cols = cols, .keys = keys, .out = out};
    in_parts(estimate, &s, parts_of(n, threads));
}

/* -- hadamard.py and fastfood.py ----------------------------------------------------------------------------- */

typedef struct {
    float *x;
    i64 n, stride, rows, size; /* of a pass over columns: rows `stride` apart */
    const float *input;        /* Fastfood: the inner transform, or what is projected */
    i64 m;
    const Draw *draw;
    float scale;
    float *out;                /* where the last pass writes to */
    int failed;
    float *sums;
    i64 segment;
} Hadamard;

static void blocks(void *job, int part, int parts) {
    Hadamard *h = job;
    i64 length = least(h->n, BLOCK);
    RANGE(h->n, length);
    for (; start < stop; start += length) {
        float *x = h->x + start;
        if (h->draw && h->m) CALL(expand, h->input, (u32)(h->m - 1), h->draw, start, length, x);
        else if (h->draw) CALL(flip, h->input, h->draw, start, least(h->size, start + length), start + length, x);
        CALL(block, x, length);
    }
}

static void columns(void *job, int part, int parts) {
    Hadamard *h = job;
    float *tile = aligned_alloc(64, (size_t)TILE * sizeof *tile);
    if (!tile) { h->failed = 1; return; }
    i64 wide = least(TILE / h->rows, h->stride), across = h->stride / wide, tiles = h->n / (h->stride * h->rows) * across;
    RANGE(tiles, 1);
    for (; start < stop; start++) {
        i64 first = start / across * h->stride * h->rows + start % across * wide;
        CALL(column, h->x, first, h->stride, h->rows, wide, tile, h->out ? h->draw : 0, h->scale, h->size, h->out);
    }
    free(tile);
}

static void signs(void *job, int part, int parts) {
    Hadamard *h = job;
    RANGE(h->size, 64);
    CALL(sign, h->x, h->draw, start, stop, h->scale, h->out);
}

/* The transform of x in place; with draw and m, x is made of the inner transform on the way; with an output, what
 * the last pass makes is multiplied by signs and a constant and its first `size` entries go there. */
static int transform(Hadamard *h, int threads) {
    int parts = parts_of(h->n, threads);
    in_parts(blocks, h, parts);
    float *out = h->out;
    for (h->stride = BLOCK; h->stride < h->n; h->stride *= h->rows) {
        h->rows = least(h->n / h->stride, TALLEST);
        h->out = h->stride * h->rows == h->n ? out : 0;
        in_parts(columns, h, parts);
        if (h->failed) return -1;
    }
    h->out = out;
    if (out && h->n <= BLOCK) in_parts(signs, h, parts);
    return 0;
}

int tw_hadamard(float *x, i64 n, int threads) {
    Hadamard h = {.x = x, .n = n};
    return transform(&h, threads);
}

static Draw draw_of(const u64 *keys, const float *table, i64 n) {
    int bits = 0;
    while ((i64)1 << bits < n) bits++;
    Draw d = {.low = (u32)keys[0], .high = (u32)(keys[0] >> 32), .table = table};
    for (int r = 0; r < 3; r++) d.times[r] = (u32)keys[r + 1] | 1, d.plus[r] = (u32)(keys[r + 1] >> 32);
    d.fold = (u32)most(1, bits / 2), d.all = (u32)(n - 1);
    return d;
}

/* inner: m floats, transformed in place; work: n floats, of which the first `size` become the result. */
int tw_fastfood(float *inner, i64 m, float *work, i64 n, i64 size, const u64 *keys, const float *table, float scale,
                int threads) {
    Draw draw = draw_of(keys, table, n);
    if (tw_hadamard(inner, m, threads)) return -1;
    Hadamard h = {.x = work, .n = n, .size = size, .input = inner, .m = m, .draw = &draw, .scale = scale, .out = work};
    return transform(&h, threads);
}

static void collect(void *job, int part, int parts) {
    Hadamard *h = job;
    for (i64 s = part; s < h->n / h->segment; s += parts)
        CALL(collect, h->x, h->draw, (u32)(h->m - 1), s * h->segment, (s + 1) * h->segment, h->sums + s * h->m);
}

/* work: n floats; sums: n / segment rows of m zeros, of which the first becomes the result before its transform. */
int tw_fastfood_transpose(const float *x, i64 size, float *work, i64 n, float *sums, i64 m, i64 segment,
                          const u64 *keys, const float *table, int threads) {
    Draw draw = draw_of(keys, table, n);
    Hadamard h = {.x = work, .n = n, .size = size, .input = x, .draw = &draw};
    if (transform(&h, threads)) return -1;
    h.m = m, h.sums = sums, h.segment = segment;
    in_parts(collect, &h, (int)least(parts_of(n, threads), n / segment));
    for (i64 s = 1; s < n / segment; s++)
        for (i64 i = 0; i < m; i++) sums[i] += sums[s * m + i];
    return tw_hadamard(sums, m, threads);
}

/* -- outer.py ------------------------------------------------------------------------------------------------ */

typedef struct { const float *left, *right; i64 rank, m, n; float *out; } Outer;

static void outer_sum(void *job, int part, int parts) {
    Outer *o = job;
    RANGE(o->m, 1);
    CALL(outer_sum, o->left, o->right, o->rank, o->m, o->n, start, stop, o->out);
}

void tw_outer_sum(const float *left, const float *right, i64 rank, i64 m, i64 n, float *out, int threads) {
    Outer o = {left, right, rank, m, n, out};
    in_parts(outer_sum, &o, (int)least(most(1, m), parts_of(rank * m * n, threads)));
}

/* -- rounding.py: one thread ---------------------------------------------------------------------------------- */

void tw_round_rows(const float *x, const float *scales, i64 rows, i64 n, float dead, float most, float *out, int32_t *whole) {
    CALL(round_rows, x, scales, rows, n, dead, most, out, whole);
}

/* -- gaps.py: one thread, a few nanoseconds a position ------------------------------------------------------- */

/* The bits that quotients take with each parameter below `count`, without those of the rests.
 * -1 unless the positions ascend below n. */
i64 tw_gaps_lengths(const i64 *positions, i64 k, i64 n, int count, i64 *lengths) {
    i64 gaps[512], last = -1;
    for (int b = 0; b < count; b++) lengths[b] = k;
    for (i64 start = 0; start < k; start += 512) {
        i64 some = least(512, k - start), wrong = 0;
        for (i64 i = 0; i < some; i++) {
            i64 position = positions[start + i];
            wrong |= (position <= last) | (position >= n);
            gaps[i] = position - last - 1;
            last = position;
        }
        if (wrong) return -1;
        for (int b = 0; b < count; b++) {
            i64 sum = 0;
            for (i64 i = 0; i < some; i++) sum += gaps[i] >> b;
            lengths[b] += sum;
        }
    }
    return 0;
}

/* Into zeros: positions that were measured before. */
void tw_gaps_encode(const i64 *positions, i64 k, int b, u8 *quotients, u8 *rests) {
    i64 last = -1, one = -1;
    u64 held = 0, mask = ((u64)1 << b) - 1;
    int filled = 0;
    for (i64 i = 0; i < k; i++) {
        u64 gap = (u64)(positions[i] - last - 1);
        last = positions[i];
        one += (i64)(gap >> b) + 1;
        quotients[one >> 3] |= (u8)(1 << (one & 7));
        u64 rest = gap & mask; /* b <= 49 bits beside at most 7 that are held */
        held |= rest << filled;
        filled += b;
        while (filled >= 8) *rests++ = (u8)held, held >>= 8, filled -= 8;
    }
    if (filled) *rests = (u8)held;
}

i64 tw_ones(const u8 *bytes, i64 length) {
    i64 ones = 0, i = 0;
    for (; i + 8 <= length; i += 8) {
        u64 w;
        memcpy(&w, bytes + i, 8);
        ones += __builtin_popcountll(w);
    }
    for (; i < length; i++) ones += __builtin_popcount(bytes[i]);
    return ones;
}

static inline u64 load(const u8 *bytes, i64 at, i64 length) {
    u64 w = 0;
    if (at + 8 <= length) memcpy(&w, bytes + at, 8);
    else if (at < length) memcpy(&w, bytes + at, (size_t)(length - at));
    return w;
}

/* As many positions as there are ones, below n; -1 if they do not fit. b <= 49, n <= 2^48, and the rests of that many
 * ones are there (the caller has checked). */
int tw_gaps_decode(const u8 *quotients, i64 length, const u8 *rests, i64 rests_length, i64 n, int b, i64 *positions) {
    u64 mask = ((u64)1 << b) - 1;
    i64 last = -1, before = -1, bit = 0;
    for (i64 at = 0; at < length; at += 8) {
        u64 w = load(quotients, at, length);
        while (w) {
            i64 one = at * 8 + __builtin_ctzll(w);
            w &= w - 1;
            i64 quotient = one - before - 1;
            before = one;
            if (quotient > n >> b) return -1;
            u64 rest = load(rests, bit >> 3, rests_length) >> (bit & 7) & mask;
            bit += b;
            last += 1 + (i64)((u64)quotient << b | rest);
            if (last >= n) return -1;
            *positions++ = last;
        }
    }
    return 0;
}

/* Into zeros; -1 unless the positions ascend below n. */
int tw_bits_encode(const i64 *positions, i64 k, i64 n, u8 *bits) {
    i64 last = -1;
    for (i64 i = 0; i < k; i++) {
        if (positions[i] <= last || positions[i] >= n) return -1;
        last = positions[i];
        bits[last >> 3] |= (u8)(1 << (last & 7));
    }
    return 0;
}

void tw_bits_decode(const u8 *bits, i64 length, i64 *positions) {
    for (i64 at = 0; at < length; at += 8)
        for (u64 w = load(bits, at, length); w; w &= w - 1) *positions++ = at * 8 + __builtin_ctzll(w);
}

/* -- rans.py ------------------------------------------------------------------------------------------------- */

#define PRECISION 14
#define LOWEST (1u << 16)

/* What the lanes write ends at words + room, in the order in which it is read; how much it is, is returned. The states
 * are left in `states`. There is room for n words, and every symbol has a frequency. */
i64 tw_rans_encode(const u8 *symbols, i64 n, i64 lanes, const u32 *frequency, const u32 *start, u32 *states, uint16_t *words, i64 room) {
    uint16_t *at = words + room;
    for (i64 l = 0; l < lanes; l++) states[l] = LOWEST;
    for (i64 row = (n - 1) / lanes * lanes; row >= 0; row -= lanes)
        for (i64 l = least(lanes, n - row) - 1; l >= 0; l--) {
            u8 symbol = symbols[row + l];
            u32 f = frequency[symbol], x = states[l];
            if (x >= (u64)f << (32 - PRECISION)) *--at = (uint16_t)x, x >>= 16;
            states[l] = ((x / f) << PRECISION) + x % f + start[symbol];
        }
    return words + room - at;
}

/* How many words were read; -1 where there are not enough. `value` says whose each of the 2^14 slots is. */
i64 tw_rans_decode(const uint16_t *words, i64 length, i64 n, i64 lanes, const u32 *frequency, const u32 *start, const u8 *value, u32 *states, u8 *symbols) {
    i64 at = 0;
    for (i64 row = 0; row < n; row += lanes)
        for (i64 l = 0; l < least(lanes, n - row); l++) {
            u32 x = states[l], slot = x & ((1u << PRECISION) - 1);
            u8 symbol = symbols[row + l] = value[slot];
            x = frequency[symbol] * (x >> PRECISION) + slot - start[symbol];
            if (x < LOWEST) {
                if (at == length) return -1;
                x = x << 16 | words[at++];
            }
            states[l] = x;
        }
    return at;
}

/* -- adaptive.py --------------------------------------------------------------------------------------------- */

#define EACH 128                /* models of a context: */
#define PREFIX 16               /* from here how long a number is, */
#define TOP 80                  /* from here its two bits after the first */
#define LONGEST 30              /* bits after the first */
#define SHARE 15                /* a probability's bits */
#define SLOWEST 160             /* events after which a model adapts no slower */
#define RAREST 16               /* of 2^16, a probability is never less */
#define RENEW (1u << 24)

/* The chance of a zero bit in 16 bits, and how many bits it was learnt from. */
typedef struct { uint16_t p; uint16_t seen; } Model;

/* A writer's `low` or a reader's `code`; the next byte's place; whether a writer has found no room. */
typedef struct { i64 low, range, at, full; } Coder;

/* After how many answers by what share of 2^16 a model moves. The compiler divides. */
#define RATE(n) 131072 / (2 * (n) + 3)
#define RATES(n) RATE(n), RATE(n + 1), RATE(n + 2), RATE(n + 3), RATE(n + 4), RATE(n + 5), RATE(n + 6), RATE(n + 7)
#define MANY_RATES(n) RATES(n), RATES(n + 8), RATES(n + 16), RATES(n + 24), RATES(n + 32)
static const int32_t rates[SLOWEST + 1] = {MANY_RATES(0), MANY_RATES(40), MANY_RATES(80), MANY_RATES(120), RATE(160)};

static inline void learn(Model *m, int bit) {
    i64 step = ((bit ? RAREST : 65536 - RAREST) - (i64)m->p) * rates[m->seen];
    m->p = (uint16_t)(m->p + (step >> 16));
    m->seen += m->seen < SLOWEST;
}

/* A writer adds, from the last byte on, what no longer fits into `low`. */
static inline void carried(Coder *c, u8 *out) {
    if (c->low >> 32 == 0) return;
    i64 i = c->at - 1;
    while (out[i] == 255) out[i--] = 0;
    out[i]++;
    c->low &= 0xFFFFFFFF;
}

static inline void narrowed(Coder *c, u8 *out, i64 room) {
    carried(c, out);
    while (c->range < RENEW) {
        /* What is put from here to the end of its number goes nowhere: from 0 on there is nothing to carry. */
        if (c->at >= room) { c->full = 1; c->low = 0; c->range = 0xFFFFFFFF; return; }
        out[c->at++] = (u8)(c->low >> 24);
        c->low = c->low << 8 & 0xFFFFFFFF;
        c->range <<= 8;
    }
}

static inline void put(Coder *c, Model *m, int bit, u8 *out, i64 room) {
    i64 bound = (c->range >> SHARE) * (m->p >> 1);
    if (bit) c->low += bound, c->range -= bound;
    else c->range = bound;
    learn(m, bit);
    narrowed(c, out, room);
}

static inline void put_plain(Coder *c, int bit, u8 *out, i64 room) {
    c->range >>= 1;
    if (bit) c->low += c->range;
    narrowed(c, out, room);
}

static inline void renewed(Coder *c, const u8 *data, i64 length) {
    while (c->range < RENEW) {
        c->low = (c->low << 8 & 0xFFFFFFFF) | (c->at < length ? data[c->at] : 0);
        c->at++;
        c->range <<= 8;
    }
}

static inline int get(Coder *c, Model *m, const u8 *data, i64 length) {
    i64 bound = (c->range >> SHARE) * (m->p >> 1);
    int bit = c->low >= bound;
    if (bit) c->low -= bound, c->range -= bound;
    else c->range = bound;
    learn(m, bit);
    renewed(c, data, length);
    return bit;
}

static inline int get_plain(Coder *c, const u8 *data, i64 length) {
    c->range >>= 1;
    int bit = c->low >= c->range;
    if (bit) c->low -= c->range;
    renewed(c, data, length);
    return bit;
}

static inline int size_of(const int32_t *v, i64 i, i64 back) {
    if (back == 0 || i < back) return 0;
    int32_t x = v[i - back];
    return x == 0 ? 0 : x == 1 || x == -1 ? 1 : 2;
}

/* The models of entry i, given those before it: of the entry before and of the one a row before. */
#define MODELS_OF(i, context)                                                                                     \
    int left = size_of(values, i, 1), above = size_of(values, i, row);                                            \
    Model *own = models + (i64)(context) * EACH, *zero = own + 3 * left + above;                                  \
    Model *prefix = own + PREFIX + 32 * (left + above > 1), *top = own + TOP;

/* One of some numbers, of a magnitude below 2^31. */
static inline void put_number(Coder *c, const int32_t *values, i64 i, i64 row, u8 context, int negative, Model *models, u8 *out, i64 room) {
    MODELS_OF(i, context)
    int32_t value = values[i];
    put(c, zero, value != 0, out, room);
    if (value == 0) return;
    if (negative) put_plain(c, value < 0, out, room);
    u32 size = value < 0 ? 0u - (u32)value : (u32)value;
    int more = 31 - __builtin_clz(size);
    for (int k = 0; k < LONGEST; k++) {
        put(c, prefix + k, k < more, out, room);
        if (k == more) break;
    }
    Model *first = top + 3 * (least(more, 16) - 1);
    for (int k = more - 1, node = 0; k >= 0; k--) {
        int bit = size >> k & 1;
        if (more - k > 2) put_plain(c, bit, out, room);
        else put(c, first + node, bit, out, room);
        node = 1 + bit;
    }
}

void tw_adaptive_put(const int32_t *values, const u8 *contexts, i64 n, i64 row, int negative, Model *models, Coder *coder, u8 *out, i64 room) {
    Coder c = *coder;
    for (i64 i = 0; i < n && !c.full; i++) put_number(&c, values, i, row, contexts[i], negative, models, out, room);
    *coder = c;
}

/* Matrices of rows[b] rows of widths[b] numbers, one after the other; a context for each row. */
void tw_adaptive_put_rows(const int32_t *values, const u8 *contexts, const i64 *rows, const i64 *widths, i64 matrices, Model *models, Coder *coder, u8 *out, i64 room) {
    Coder c = *coder;
    for (i64 b = 0; b < matrices; b++) {
        i64 wide = widths[b];
        for (i64 k = 0; k < rows[b]; k++, contexts++)
            for (i64 i = k * wide; i < (k + 1) * wide && !c.full; i++)
                put_number(&c, values, i, wide, *contexts, 1, models, out, room);
        values += rows[b] * wide;
    }
    *coder = c;
}

/* The fewest bytes that tell the range, without zeros at the end; how many bytes there are. -1: no room. */
i64 tw_adaptive_end(i64 low, i64 range, i64 at, u8 *out, i64 room) {
    Coder c = {low, range, at, 0};
    for (int bytes = 0; bytes <= 4; bytes++) {
        i64 rest = ((i64)1 << (32 - 8 * bytes)) - 1, value = (c.low + rest) & ~rest;
        if (value > c.low + c.range - 1) continue;
        if (c.at + bytes > room) return -1;
        c.low = value;
        carried(&c, out);
        for (int k = 0; k < bytes; k++, c.low = c.low << 8 & 0xFFFFFFFF) out[c.at++] = (u8)(c.low >> 24);
        break;
    }
    while (c.at && out[c.at - 1] == 0) c.at--;
    return c.at;
}

/* What was put; beyond the end zeros are read, and no number is longer than 31 bits. */
void tw_adaptive_get(int32_t *values, const u8 *contexts, i64 n, i64 row, int negative, Model *models, Coder *coder, const u8 *data, i64 length) {
    Coder c = *coder;
    for (i64 i = 0; i < n; i++) {
        MODELS_OF(i, contexts[i])
        values[i] = 0;
        if (!get(&c, zero, data, length)) continue;
        int minus = negative ? get_plain(&c, data, length) : 0, more = 0;
        while (more < LONGEST && get(&c, prefix + more, data, length)) more++;
        Model *first = top + 3 * (least(more, 16) - 1);
        u32 size = 1;
        for (int k = more - 1, node = 0; k >= 0; k--) {
            int bit = more - k > 2 ? get_plain(&c, data, length) : get(&c, first + node, data, length);
            size = size << 1 | (u32)bit;
            node = 1 + bit;
        }
        values[i] = minus ? -(int32_t)size : (int32_t)size;
    }
    *coder = c;
}

/* -- levels.py ------------------------------------------------------------------------------------------------ */

enum { IS = 0, COUNT = 1024, SIGN = 1152, SIZE = 1168 }; /* places of models; `levels.py` says of what */

/* Who answers: a writer, which knows the values, or a reader. */
typedef struct { Coder c; Model *models; u8 *out; const u8 *data; i64 room; } Asker;

static inline int ask(Asker *a, i64 model, int bit) {
    if (a->out == NULL) return get(&a->c, a->models + model, a->data, a->room);
    put(&a->c, a->models + model, bit, a->out, a->room);
    return bit;
}

static inline i64 ask_number(Asker *a, i64 first, i64 value) {
    int bits = value ? 64 - __builtin_clzll((unsigned long long)value) : 0, size = 0;
    while (size < LONGEST && ask(a, first + size, size < bits)) size++;
    i64 found = size > 0;
    for (int k = size - 2; k >= 0; k--) {
        int bit = value >> k & 1;
        if (k == size - 2) bit = ask(a, first + 32 + size, bit);
        else if (a->out == NULL) bit = get_plain(&a->c, a->data, a->room);
        else put_plain(&a->c, bit, a->out, a->room);
        found = found << 1 | bit;
    }
    return found;
}

/* The logarithm in half octaves: 0 of 0, 1 of 1. */
static inline int halves(i64 x) {
    if (x < 2) return (int)x;
    int bits = 64 - __builtin_clzll((unsigned long long)x);
    return 2 * bits - 2 + (int)(x >> (bits - 2) & 1);
}

static inline int bits_of(int size) { return size ? least(32 - __builtin_clz((u32)size), 4) : 0; }

/* Of a column: how often it was set, that in half octaves, the sign and the size of its last one. */
typedef struct { int32_t count; u8 class, sign, size; } Column;

static inline __attribute__((always_inline)) int levels(Asker *a, int8_t *values, i64 n, i64 width, int negative, int most, Column *columns) {
    i64 total = 0, before = 0;
    for (i64 j = 0; j < least(width, n); j++) columns[j] = (Column){0, (u8)halves(16), 0, 0};
    for (i64 start = 0; start < n && !a->c.full; start += width) {
        i64 wide = least(width, n - start), left = 0;
        int8_t *row = values + start;
        if (a->out != NULL) for (i64 j = 0; j < wide; j++) left += row[j] != 0;
        left = ask_number(a, COUNT + 64 * (before > 0), left);
        if (left > wide) return 1;
        before = left;
        int mean = halves(16 * (2 * total + width) / width), density = 0, was = 0, sign = 0, size = 0;
        total += left;
        for (i64 j = 0; left > 0; j++) {
            Column *column = columns + j;
            int is = row[j] != 0;
            if (left < wide - j) {
                if (was || j % 16 == 0) density = halves((left << 12) / (wide - j));
                int class = column->class - mean + 8;
                class = class < 0 ? 0 : class > 15 ? 15 : class;
                is = ask(a, IS + (density * 16 + class) * 2 + was, is);
            } else is = 1;
            was = is;
            if (!is) continue;
            left--;
            column->class = (u8)halves(16 * (2 * (i64)++column->count + 1));
            int minus = row[j] < 0, value = 1;
            if (negative) {
                minus = ask(a, SIGN + 3 * sign + column->sign, minus);
                sign = column->sign = (u8)(1 + minus);
            } else minus = 0;
            if (most > 1) {
                value = row[j] < 0 ? -row[j] : row[j];
                value = 1 + (int)ask_number(a, SIZE + 64 * (size + column->size), value - 1);
                if (value > most) return 1;
                size = column->size = (u8)bits_of(value);
            }
            if (a->out == NULL) row[j] = (int8_t)(minus ? -value : value);
            else if (a->c.full) break;
        }
    }
    return 0;
}

/* Writes; 1 where there is no memory. */
int tw_levels_put(const int8_t *values, i64 n, i64 width, int negative, int most, Model *models, Coder *coder, u8 *out, i64 room) {
    Column *columns = malloc((size_t)(least(width, n) + 1) * sizeof(Column));
    if (columns == NULL) return 1;
    Asker a = {*coder, models, out, NULL, room};
    levels(&a, (int8_t *)values, n, width, negative, most, columns);
    *coder = a.c;
    free(columns);
    return 0;
}

/* Reads into `values`, which are zeros. 1: no memory; 2: no writer writes this. */
int tw_levels_get(int8_t *values, i64 n, i64 width, int negative, int most, Model *models, Coder *coder, const u8 *data, i64 length) {
    Column *columns = malloc((size_t)(least(width, n) + 1) * sizeof(Column));
    if (columns == NULL) return 1;
    Asker a = {*coder, models, NULL, data, length};
    int wrong = levels(&a, values, n, width, negative, most, columns);
    *coder = a.c;
    free(columns);
    return wrong ? 2 : 0;
}

/* -- train/compiled.py -------------------------------------------------------------------------------------------- */

enum { IDENTITY, RELU, TANH, SIGMOID };

/* A linear layer and the function after it; where its weights [out, in] and its bias lie in the model, -1 for none. With
 * a rank its weights are (x1 y1T) * (x2 y2T) entry by entry: x [out, rank], y [in, rank], x1 lies where `weight` says. */
typedef struct { i64 in, out, weight, bias, after, rank, y1, x2, y2; } Linear;

/* What a layer of products needs besides: its weights, both factors of them, their derivatives, and a factor turned. */
typedef struct { float *weights, *first, *second, *slopes, *turned; } Product;

static void activated(float *y, i64 n, i64 after) {
    if (after == RELU) for (i64 i = 0; i < n; i++) y[i] = y[i] < 0 ? 0 : y[i]; /* NaN stays */
    if (after == TANH) for (i64 i = 0; i < n; i++) y[i] = tanhf(y[i]);
    if (after == SIGMOID) for (i64 i = 0; i < n; i++) y[i] = 1 / (1 + expf(-y[i]));
}

static void slopes(const float *y, float *dy, i64 n, i64 after) {
    if (after == RELU) for (i64 i = 0; i < n; i++) dy[i] = y[i] > 0 ? dy[i] : 0;
    if (after == TANH) for (i64 i = 0; i < n; i++) dy[i] *= 1 - y[i] * y[i];
    if (after == SIGMOID) for (i64 i = 0; i < n; i++) dy[i] *= y[i] * (1 - y[i]);
}

/* Logits become their derivatives of the mean cross-entropy of `rows` examples; the sum of their losses is returned. */
static double cross_entropy(float *y, i64 gap, i64 rows, i64 classes, const i64 *targets) {
    double total = 0;
    for (i64 b = 0; b < rows; b++, y += gap) {
        float top = y[0], sum = 0, right = y[targets[b]];
        for (i64 c = 1; c < classes; c++) top = y[c] > top ? y[c] : top;
        for (i64 c = 0; c < classes; c++) sum += y[c] = expf(y[c] - top);
        total += logf(sum) + top - right;
        for (i64 c = 0; c < classes; c++) y[c] = (y[c] / sum - (c == targets[b])) / (float)rows;
    }
    return total;
}

static i64 padded(i64 n) { return (n + 15) / 16 * 16; }

/* The examples of all clients: rows of floats, or of bytes with the float that each byte of a plane stands for, or texts,
 * words[example][length], 0 where there is no word. */
typedef struct {
    const float *floats;
    const u8 *bytes;
    const float *table; /* [planes, 256] */
    i64 plane;          /* bytes of a plane */
    const i64 *targets;
    const i64 *words;
    i64 length;
    i64 count;
} Examples;

static void example(const Examples *e, i64 at, i64 in, float *row) {
    if (e->floats) {
        memcpy(row, e->floats + at * in, (size_t)in * 4);
        return;
    }
    const u8 *bytes = e->bytes + at * in;
    const float *table = e->table;
    for (i64 start = 0; start < in; start += e->plane, table += 256)
        for (i64 i = start; i < start + e->plane; i++) row[i] = table[bytes[i]];
}

/* The words of a vocabulary as rows of the model, from `place` on; a vocabulary of 0: examples are rows themselves. */
typedef struct { i64 place, vocabulary; } Words;

/* The mean of a text's words. How many there are, 1 where none is; 0 where one is not in the vocabulary. Id 0 adds its
 * row and is not counted, as in models/fasttext.py. */
static i64 mean_word(const float *table, i64 vocabulary, i64 in, const i64 *words, i64 length, float *row) {
    i64 count = 0;
    memset(row, 0, (size_t)in * 4);
    for (i64 j = 0; j < length; j++) {
        if (words[j] < 0 || words[j] >= vocabulary) return 0;
        const float *word = table + words[j] * in;
        for (i64 i = 0; i < in; i++) row[i] += word[i];
        count += words[j] != 0;
    }
    count = count ? count : 1;
    for (i64 i = 0; i < in; i++) row[i] /= (float)count;
    return count;
}

/* Adds what a text's words owe to their rows; id 0 owes nothing. */
static void words_owe(float *table, float by, i64 in, const i64 *words, i64 length, const float *dy) {
    for (i64 j = 0; j < length; j++)
        if (words[j])
            for (i64 i = 0; i < in; i++) table[words[j] * in + i] += by * dy[i];
}

/* A client: its model w begins as the n numbers of `begun`. Step s sees its examples places[s][..], -1 where there are no
 * more; `own` says where those lie, below 0 from the end; null: in that order. The sum of the losses is written to `loss`,
 * how many examples they are of to `seen`, and to `finite` whether all of w is. The seconds of each part of a step are
 * added to `spent`; null: nobody asks. The `statistics` of norms move.
 * `room` is that of convolutions, for batches of at most `most`. */
typedef struct {
    float *w;
    const float *begun;
    const i64 *own, *places;
    i64 steps, size;
    Bend bend;
    double loss;
    i64 seen, finite;
    double *spent;
    float *statistics, *room;
    i64 most;
} Client;

/* The parts of a step: train/compiled.py, PARTS. */
enum { TAKE, CONVOLVE, FORWARD, BACKWARD, CONVOLVE_BACK, BEND };

static void clocked(const Client *client, int part, double *since) {
    if (!client->spent) return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (part >= 0) client->spent[part] += seconds - *since;
    *since = seconds;
}

static int chain(Client *client, i64 n, const Words *words, const Front *front, const Linear *layers, int depth, const Examples *examples) {
    float *w = client->w;
    const i64 *own = client->own, *places = client->places;
    i64 steps = client->steps, size = client->size, all = 0;
    const Bend *bend = &client->bend;
    i64 rows = (size + 4) / 5 * 5, floats = (words->vocabulary || front ? 2 : 1) * rows * padded(layers[0].in);
    i64 pixels = front ? front->channels * front->height * front->width : 0;
    int products = 0;
    for (int l = 0; l < depth; l++) {
        const Linear *it = layers + l;
        floats += 2 * rows * padded(it->out);
        if (it->rank) products = 1, floats += 4 * it->out * it->in + (it->rank + 1) * it->in;
    }
    int plain = !products && bend->decay == 0 && !bend->anchor && !bend->offset && !bend->velocity && !bend->mask && !bend->part;
    float *room = calloc((size_t)(floats + pixels + (plain ? 0 : n)), 4), **values = malloc(2 * (size_t)(depth + 1) * sizeof *values);
    i64 *labels = malloc(3 * (size_t)size * sizeof *labels), *texts = labels + size, *counts = labels + 2 * size;
    Product *made = malloc((size_t)depth * sizeof *made);
    Net *net = front ? net_open(front, client->most, client->room) : NULL;
    int bad = !room || !values || !labels || !made || (front && !net);
    double total = 0, since = 0;
    if (!bad) {
        memcpy(w, client->begun, (size_t)n * 4);
        float **back = values + depth + 1, *free_ = room, *picture = room + floats, *g = plain ? w : picture + pixels;
        values[0] = free_, free_ += rows * padded(layers[0].in);
        back[0] = free_, free_ += words->vocabulary || front ? rows * padded(layers[0].in) : 0;
        for (int l = 0; l < depth; l++) {
            values[l + 1] = free_, free_ += rows * padded(layers[l].out);
            back[l + 1] = free_, free_ += rows * padded(layers[l].out);
        }
        for (int l = 0; l < depth; l++) {
            if (!layers[l].rank) continue;
            i64 entries = layers[l].out * layers[l].in;
            made[l].weights = free_, made[l].first = free_ + entries, made[l].second = free_ + 2 * entries;
            made[l].slopes = free_ + 3 * entries, made[l].turned = free_ + 4 * entries;
            free_ += 4 * entries + (layers[l].rank + 1) * layers[l].in;
        }
        clocked(client, -1, &since);
        for (i64 s = 0; s < steps; s++, places += size) {
            i64 in = layers[0].in, wide = padded(in), seen = 0;
            for (; seen < size && places[seen] >= 0; seen++) {
                i64 at = own ? own[places[seen]] : places[seen], length = examples->length;
                if (at < 0) at += examples->count;
                if (at < 0 || at >= examples->count) {
                    bad = 3;
                    break;
                }
                float *row = values[0] + seen * wide;
                labels[seen] = examples->targets[at];
                if (front) {
                    example(examples, at, pixels, picture);
                    net_take(net, seen, picture);
                    continue;
                }
                if (!words->vocabulary) {
                    example(examples, at, in, row);
                    continue;
                }
                texts[seen] = at * length;
                counts[seen] = mean_word(w + words->place, words->vocabulary, in, examples->words + texts[seen], length, row);
                if (!counts[seen]) bad = 2;
            }
            if (bad) break;
            all += seen;
            memset(values[0] + seen * wide, 0, (size_t)((rows - seen) * wide) * 4);
            clocked(client, TAKE, &since);
            if (front && net_forward(net, level, w, client->statistics, seen, values[0], wide)) total = NAN; /* torch's gradients would be, too */
            clocked(client, CONVOLVE, &since);
            for (int l = 0; l < depth; l++) {
                const Linear *it = layers + l;
                i64 gap = padded(it->out);
                const float *bias = it->bias < 0 ? 0 : w + it->bias, *weights = w + it->weight;
                if (it->rank) {
                    const Product *m = made + l;
                    CALL(compose, weights, w + it->y1, it->out, it->in, it->rank, m->turned, m->first);
                    CALL(compose, w + it->x2, w + it->y2, it->out, it->in, it->rank, m->turned, m->second);
                    for (i64 i = 0; i < it->out * it->in; i++) m->weights[i] = m->first[i] * m->second[i];
                    weights = m->weights;
                }
                CALL(linear, values[l], padded(it->in), rows, weights, bias, it->in, it->out, values[l + 1], gap);
                for (i64 b = 0; b < rows; b++) activated(values[l + 1] + b * gap, it->out, it->after);
            }
            i64 classes = layers[depth - 1].out, last = padded(classes);
            memcpy(back[depth], values[depth], (size_t)(seen * last) * 4);
            memset(back[depth] + seen * last, 0, (size_t)((rows - seen) * last) * 4);
            total += cross_entropy(back[depth], last, seen, classes, labels);
            clocked(client, FORWARD, &since);
            if (!plain) memset(g, 0, (size_t)n * 4);
            for (int l = depth - 1; l >= 0; l--) {
                const Linear *it = layers + l;
                i64 gap = padded(it->in), out_gap = padded(it->out);
                float by = plain ? -bend->lr : 1, *dy = back[l + 1];
                for (i64 b = 0; b < seen; b++) slopes(values[l + 1] + b * out_gap, dy + b * out_gap, it->out, it->after);
                const Product *m = it->rank ? made + l : 0;
                const float *weights = m ? m->weights : w + it->weight;
                if (l || words->vocabulary || front) CALL(linear_inputs, dy, out_gap, rows, weights, it->in, it->out, back[l], gap);
                if (m) memset(m->slopes, 0, (size_t)(it->out * it->in) * 4);
                CALL(linear_weights, values[l], gap, rows, dy, out_gap, by, it->in, it->out, m ? m->slopes : g + it->weight);
                if (m) {
                    const float *x1 = w + it->weight, *y1 = w + it->y1, *x2 = w + it->x2, *y2 = w + it->y2;
                    i64 o = it->out, i = it->in, r = it->rank;
                    CALL(decompose, m->slopes, m->second, x1, y1, o, i, r, m->turned, g + it->weight, g + it->y1);
                    CALL(decompose, m->slopes, m->first, x2, y2, o, i, r, m->turned, g + it->x2, g + it->y2);
                }
                if (it->bias >= 0)
                    for (i64 b = 0; b < seen; b++)
                        for (i64 o = 0; o < it->out; o++) g[it->bias + o] += by * dy[b * out_gap + o];
            }
            for (i64 b = 0; words->vocabulary && b < seen; b++)
                words_owe(g + words->place, (plain ? -bend->lr : 1) / (float)counts[b], in, examples->words + texts[b], examples->length, back[0] + b * wide);
            clocked(client, BACKWARD, &since);
            if (front) net_backward(net, level, back[0], wide, seen, plain ? -bend->lr : 1, g);
            clocked(client, CONVOLVE_BACK, &since);
            if (!plain) CALL(bend, w, g, bend, n);
            clocked(client, BEND, &since);
        }
    }
    client->loss = total, client->seen = all, client->finite = CALL(magnitude, w, n) < 0x7f800000;
    free(room), free(values), free(labels), free(made);
    if (net) net_close(net);
    return bad;
}

/* SGD of some clients' models of n parameters. -1 where there is no memory, -2 where a text has a word that is not in the
 * vocabulary, -3 where `own` names an example that is not there. The caller has checked places and targets. */
int tw_chains(Client *clients, i64 num, i64 n, const Words *words, const Front *front, const Linear *layers, int depth, const Examples *examples) {
    for (i64 i = 0; i < num; i++) {
        int bad = chain(clients + i, n, words, front, layers, depth, examples);
        if (bad) return -bad;
    }
    return 0;
}
