/* The loops of native.c, included once for each level of the instruction set: FN(name) is name_plain, name_avx2 or
 * name_avx512. Most are plain C over blocks of 64 entries, which compilers turn into what the level has; where they
 * would not (a comparison into bits, bits into lanes, stores past the cache) there are intrinsics for x86. */

/* Floats 16 at a time; compilers split them where registers are shorter. */
#ifndef LOOPS_TYPES
#define LOOPS_TYPES
typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef u32 w16 __attribute__((vector_size(64), aligned(4), may_alias));
#if defined(__clang__) || __GNUC__ >= 12
#define LANES(x, d)                                                                                               \
    __builtin_shufflevector(x, x, 0 ^ d, 1 ^ d, 2 ^ d, 3 ^ d, 4 ^ d, 5 ^ d, 6 ^ d, 7 ^ d, 8 ^ d, 9 ^ d, 10 ^ d,   \
                            11 ^ d, 12 ^ d, 13 ^ d, 14 ^ d, 15 ^ d)
#else
#define LANES(x, d)                                                                                               \
    __builtin_shuffle(x, (w16){0 ^ d, 1 ^ d, 2 ^ d, 3 ^ d, 4 ^ d, 5 ^ d, 6 ^ d, 7 ^ d, 8 ^ d, 9 ^ d, 10 ^ d,      \
                               11 ^ d, 12 ^ d, 13 ^ d, 14 ^ d, 15 ^ d})
#endif
#define TOP(d, j) ((j) & (d) ? 0x80000000u : 0)
#define SIGNS(d)                                                                                                  \
    (w16){TOP(d, 0), TOP(d, 1), TOP(d, 2), TOP(d, 3), TOP(d, 4), TOP(d, 5), TOP(d, 6), TOP(d, 7),                 \
          TOP(d, 8), TOP(d, 9), TOP(d, 10), TOP(d, 11), TOP(d, 12), TOP(d, 13), TOP(d, 14), TOP(d, 15)}
#define INLINE static inline __attribute__((always_inline))
/* A loop of look-ups: vectors that are put together entry by entry are slower than no vectors. */
#define ONE_BY_ONE __asm__ volatile("")
/* 64 entries from a block that is shorter: the rest are zeros. */
#define SHORT(x, length)                                                                                          \
    float short_[64];                                                                                             \
    if ((length) < 64) {                                                                                          \
        memset(short_, 0, sizeof short_);                                                                         \
        memcpy(short_, x, (size_t)(length) * 4);                                                                  \
        x = short_;                                                                                               \
    }
#define FIRST(length) ((length) >= 64 ? ~(u64)0 : ((u64)1 << (length)) - 1)
#endif

/* The same in vectors of the width that a register has at this level. Compilers keep wider sums in memory. */
#if defined(AVX512)
#define WIDTH 16
#elif defined(AVX2)
#define WIDTH 8
#else
#define WIDTH 4
#endif
#define PARTS (16 / WIDTH)
typedef float FN(vec) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
#define VEC(at) (*(FN(vec) *)(at))
#define GIVEN(at) (*(const FN(vec) *)(at))

/* -- select -------------------------------------------------------------------------------------------------- */

/* Bit j: the magnitude of x[j] lies from low to low + width. */
static inline u64 FN(between)(const float *x, u32 low, u32 width) {
    u64 found = 0;
#if defined(AVX512)
    const __m512i all = _mm512_set1_epi32(0x7FFFFFFF), from = _mm512_set1_epi32((int)low), most_ = _mm512_set1_epi32((int)width);
    for (int g = 0; g < 4; g++) {
        __m512i v = _mm512_sub_epi32(_mm512_and_si512(_mm512_loadu_si512(x + 16 * g), all), from);
        found |= (u64)_mm512_cmple_epu32_mask(v, most_) << 16 * g;
    }
#elif defined(AVX2)
    const __m256i all = _mm256_set1_epi32(0x7FFFFFFF), from = _mm256_set1_epi32((int)low), most_ = _mm256_set1_epi32((int)width);
    for (int g = 0; g < 8; g++) {
        __m256i v = _mm256_sub_epi32(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + 8 * g)), all), from);
        __m256i in = _mm256_cmpeq_epi32(_mm256_min_epu32(v, most_), v);
        found |= (u64)(u32)_mm256_movemask_ps(_mm256_castsi256_ps(in)) << 8 * g;
    }
#else
    u8 in[64];
    for (int j = 0; j < 64; j++) in[j] = (word(x[j]) & 0x7FFFFFFFu) - low <= width;
    for (int g = 0; g < 8; g++) {
        u64 bytes;
        memcpy(&bytes, in + 8 * g, 8);
        found |= (bytes * 0x0102040810204080u >> 56) << 8 * g; /* eight bytes of 0 or 1 to eight bits */
    }
#endif
    return found;
}

static inline u64 FN(some_between)(const float *x, i64 length, u32 low, u32 width) {
    SHORT(x, length)
    return FN(between)(x, low, width) & FIRST(length);
}

static void FN(count_high)(const float *x, i64 n, u32 floor, u32 *counts) {
    if (floor == 0) {
        for (i64 i = 0; i < n; i++) counts[(word(x[i]) & 0x7FFFFFFFu) >> 16]++;
        return;
    }
    for (i64 i = 0; i < n; i += 64)
        for (u64 in = FN(some_between)(x + i, n - i, floor, 0x7FFFFFFFu - floor); in; in &= in - 1)
            counts[(word(x[i + __builtin_ctzll(in)]) & 0x7FFFFFFFu) >> 16]++;
}

static void FN(count_low)(const float *x, i64 n, u32 bin, u32 *counts) {
    for (i64 i = 0; i < n; i += 64)
        for (u64 in = FN(some_between)(x + i, n - i, bin << 16, 0xFFFF); in; in &= in - 1)
            counts[word(x[i + __builtin_ctzll(in)]) & 0xFFFF]++;
}

static i64 FN(count_between)(const float *x, i64 n, u32 low, u32 width) {
    i64 count = 0;
    for (i64 i = 0; i < n; i += 64) count += __builtin_popcountll(FN(some_between)(x + i, n - i, low, width));
    return count;
}

/* The positions of the magnitudes from low to low + width, but of those equal to low only the first `quota`. */
static void FN(fill)(const float *x, i64 n, i64 offset, u32 low, u32 width, i64 quota, i64 *out) {
    for (i64 i = 0; i < n; i += 64) {
        u64 in = FN(some_between)(x + i, n - i, low, width);
        if (quota != INT64_MAX && in) {
            u64 equal = FN(some_between)(x + i, n - i, low, 0);
            for (; equal; equal &= equal - 1) {
                if (quota > 0) quota--;
                else in &= ~(equal & -equal);
            }
        }
        for (; in; in &= in - 1) *out++ = offset + i + __builtin_ctzll(in);
    }
}

/* -- signs --------------------------------------------------------------------------------------------------- */

static inline u64 FN(positive)(const float *x) {
    u64 found = 0;
#if defined(AVX512)
    for (int g = 0; g < 4; g++)
        found |= (u64)_mm512_cmp_ps_mask(_mm512_loadu_ps(x + 16 * g), _mm512_setzero_ps(), _CMP_GE_OQ) << 16 * g;
#elif defined(AVX2)
    for (int g = 0; g < 8; g++) {
        __m256 in = _mm256_cmp_ps(_mm256_loadu_ps(x + 8 * g), _mm256_setzero_ps(), _CMP_GE_OQ);
        found |= (u64)(u32)_mm256_movemask_ps(in) << 8 * g;
    }
#else
    u8 in[64];
    for (int j = 0; j < 64; j++) in[j] = x[j] >= 0;
    for (int g = 0; g < 8; g++) {
        u64 bytes;
        memcpy(&bytes, in + 8 * g, 8);
        found |= (bytes * 0x0102040810204080u >> 56) << 8 * g;
    }
#endif
    return found;
}

static void FN(pack_signs)(const float *x, i64 n, u8 *packed) {
    i64 i = 0;
    for (; i + 64 <= n; i += 64) {
        u64 bits = FN(positive)(x + i);
        memcpy(packed + i / 8, &bits, 8);
    }
    if (i < n) {
        const float *rest = x + i;
        SHORT(rest, n - i)
        u64 bits = FN(positive)(rest) & FIRST(n - i);
        memcpy(packed + i / 8, &bits, (size_t)((n - i + 7) / 8));
    }
}

/* What is larger than the caches is better written past them. */
static void FN(unpack_signs)(const u8 *bits, i64 n, float scale, float *out) {
    i64 i = 0;
    u32 minus = word(-scale);
#if defined(AVX512)
    const __m512 plus_ = _mm512_set1_ps(scale), minus_ = _mm512_set1_ps(-scale);
    if (n >= 1 << 20 && (uintptr_t)out % 64 == 0) {
        for (; i + 64 <= n; i += 64) {
            u64 w;
            memcpy(&w, bits + i / 8, 8);
            for (int g = 0; g < 4; g++)
                _mm512_stream_ps(out + i + 16 * g, _mm512_mask_blend_ps((__mmask16)(w >> 16 * g), minus_, plus_));
        }
        _mm_sfence();
    }
    for (; i + 16 <= n; i += 16) {
        uint16_t w;
        memcpy(&w, bits + i / 8, 2);
        _mm512_storeu_ps(out + i, _mm512_mask_blend_ps(w, minus_, plus_));
    }
#elif defined(AVX2)
    const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256 plus_ = _mm256_set1_ps(scale), minus_ = _mm256_set1_ps(-scale);
    int past = n >= 1 << 20 && (uintptr_t)out % 32 == 0;
    for (; i + 8 <= n; i += 8) {
        __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits[i / 8]), lanes), lanes);
        __m256 value = _mm256_blendv_ps(minus_, plus_, _mm256_castsi256_ps(set));
        if (past) _mm256_stream_ps(out + i, value);
        else _mm256_storeu_ps(out + i, value);
    }
    if (past) _mm_sfence();
#else
    for (; i + 8 <= n; i += 8) {
        u32 byte = bits[i / 8];
        for (u32 j = 0; j < 8; j++) out[i + j] = real(minus ^ (byte >> j & 1) << 31);
    }
#endif
    for (; i < n; i++) out[i] = real(minus ^ (u32)(bits[i / 8] >> i % 8 & 1) << 31);
}

static void FN(partial_sums)(const float *x, i64 n, double *sums) {
    for (i64 start = 0; start < n; start += SUM_LANES * SUM_ROWS) {
        double lanes[SUM_LANES] = {0};
        i64 length = least(n - start, SUM_LANES * SUM_ROWS), i = 0;
        for (; i + SUM_LANES <= length; i += SUM_LANES)
            for (int j = 0; j < SUM_LANES; j++) lanes[j] += (double)__builtin_fabsf(x[start + i + j]);
        for (int j = 0; i + j < length; j++) lanes[j] += (double)__builtin_fabsf(x[start + i + j]);
        for (int half = SUM_LANES / 2; half; half /= 2)
            for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
        *sums++ = lanes[0];
    }
}

/* -- quantize ------------------------------------------------------------------------------------------------ */

static void FN(quantize)(const float *x, i64 n, i64 offset, float lift, float factor, int levels, int bits, u32 low,
                         u32 high, u8 *packed) {
    float reach = bits == 1 ? 1.0f : (float)levels;
    for (i64 i = 0; i < n; i += 64) {
        i64 length = least(64, n - i), bytes = (length * bits + 7) / 8;
        const float *v = x + i;
        u32 at = (u32)(offset + i);
        u8 code[64], out[64];
        SHORT(v, length)
        if (bits == 1) {
            for (int j = 0; j < 64; j++) {
                float u = (float)(int32_t)(mix(at + (u32)j, low, high) >> 8) * 0x1p-24f;
                float y = v[j] * lift * factor;
                y = y < 1.0f ? y : 1.0f;
                y = y > -1.0f ? y : -1.0f;
                code[j] = u < (y + 1.0f) * 0.5f;
            }
        } else {
            for (int j = 0; j < 64; j++) {
                float u = (float)(int32_t)(mix(at + (u32)j, low, high) >> 8) * 0x1p-24f;
                float y = v[j] * lift * factor;
                y = y < reach ? y : reach;
                y = y > -reach ? y : -reach;
                int32_t whole = (int32_t)y;
                whole -= (float)whole > y;
                code[j] = (u8)(whole + (u < y - (float)whole) + levels);
            }
        }
        for (i64 j = length; j < 64; j++) code[j] = 0;
        u8 *to = length == 64 ? packed + i / 8 * bits : out;
        if (bits == 8) memcpy(to, code, 64);
        else if (bits == 4)
            for (int j = 0; j < 32; j++) to[j] = (u8)(code[2 * j] | code[2 * j + 1] << 4);
        else if (bits == 2)
            for (int j = 0; j < 8; j++) {
                u64 eight;
                memcpy(&eight, code + 8 * j, 8);
                eight = (eight | eight >> 6) & 0x000F000F000F000Fu;
                eight = (eight | eight >> 12) & 0x000000FF000000FFu;
                eight |= eight >> 24;
                memcpy(to + 2 * j, &eight, 2);
            }
        else
            for (int j = 0; j < 8; j++) {
                u64 eight;
                memcpy(&eight, code + 8 * j, 8);
                to[j] = (u8)(eight * 0x0102040810204080u >> 56);
            }
        if (length < 64) memcpy(packed + i / 8 * bits, out, (size_t)bytes);
    }
}

static int FN(dequantize)(const u8 *packed, i64 n, int levels, int bits, float step, float *out) {
    int largest = 0;
    for (i64 i = 0; i < n; i += 64) {
        i64 length = least(64, n - i);
        u8 held[64] = {0}, code[64];
        const u8 *from = packed + i / 8 * bits;
        if (length < 64) memcpy(held, from, (size_t)((length * bits + 7) / 8)), from = held;
        if (bits == 8) memcpy(code, from, 64);
        else if (bits == 4)
            for (int j = 0; j < 8; j++) {
                u64 eight = 0;
                memcpy(&eight, from + 4 * j, 4);
                eight = (eight | eight << 16) & 0x0000FFFF0000FFFFu;
                eight = (eight | eight << 8) & 0x00FF00FF00FF00FFu;
                eight = (eight | eight << 4) & 0x0F0F0F0F0F0F0F0Fu;
                memcpy(code + 8 * j, &eight, 8);
            }
        else
            for (int j = 0; j < 8; j++) {
                u64 eight = 0;
                memcpy(&eight, from + 2 * j, 2);
                eight = (eight | eight << 24) & 0x000000FF000000FFu;
                eight = (eight | eight << 12) & 0x000F000F000F000Fu;
                eight = (eight | eight << 6) & 0x0303030303030303u;
                memcpy(code + 8 * j, &eight, 8);
            }
        u8 high = 0;
        for (int j = 0; j < 64; j++) high = code[j] > high ? code[j] : high;
        largest = high > largest ? high : largest;
        float *to = out + i, some[64];
        if (length < 64) to = some;
        for (int j = 0; j < 64; j++) to[j] = (float)((int)code[j] - levels) * step;
        if (length < 64) memcpy(out + i, some, (size_t)length * 4);
    }
    return largest;
}

/* -- sketch -------------------------------------------------------------------------------------------------- */

/* Runs of 16 entries go side by side from a random column on, of a narrow table single entries; a bit each says whose
 * sign is turned. */
static inline void FN(places)(i64 run, u32 cols, u32 low, u32 high, u32 *column, u32 *turned) {
    for (int j = 0; j < 64; j++) {
        u32 i = 2 * ((u32)run + (u32)j);
        column[j] = (u32)((u64)mix(i, low, high) * cols >> 32);
        turned[j] = mix(i + 1, low, high);
    }
}

INLINE v16 FN(turn)(v16 x, u32 turned) {
    const w16 up = {31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16};
    return (v16)((w16)x ^ (((w16){0} + turned) << up & 0x80000000u));
}

static void FN(count_row)(const float *x, i64 n, i64 cols, u32 low, u32 high, float *row, i64 first, i64 last) {
    u32 column[64], turned[64];
    i64 wide = cols < 16 ? 1 : 16;
    for (i64 at = 0, run = 0; at < n; run += 64) {
        FN(places)(run, (u32)cols, low, high, column, turned);
        if (wide == 16)
            for (int j = 0; j < 64; j++) __builtin_prefetch(row + column[j], 1);
        for (int j = 0; j < 64 && at < n; j++, at += wide) {
            i64 to = column[j], length = least(wide, n - at);
            if (length == 16 && to >= first && to + 16 <= last) {
                *(v16 *)(row + to) += FN(turn)(*(const v16 *)(x + at), turned[j]);
                continue;
            }
            for (i64 lane = 0; lane < length; lane++, to++) {
                if (to == cols) to = 0;
                if (to >= first && to < last) row[to] += real(word(x[at + lane]) ^ turned[j] >> lane << 31);
            }
        }
    }
}

/* `start` begins a run. */
static void FN(estimate)(const float *sketch, i64 rows, i64 cols, const u64 *keys, i64 start, i64 stop, float *out) {
    v16 guess[MOST_ROWS];
    i64 wide = cols < 16 ? 1 : 16;
    for (i64 i = start; i < stop; i += wide) {
        for (i64 r = 0; r < rows; r++) {
            const float *row = sketch + r * cols;
            u32 low = (u32)keys[r], high = (u32)(keys[r] >> 32), run = (u32)(i / wide) * 2;
            i64 at = (i64)((u64)mix(run, low, high) * (u64)cols >> 32);
            v16 found = {0};
            if (at + 16 <= cols) found = *(const v16 *)(row + at);
            else
                for (int lane = 0; lane < wide; lane++, at++) {
                    if (at == cols) at = 0;
                    found[lane] = row[at];
                }
            guess[r] = FN(turn)(found, mix(run + 1, low, high));
        }
        for (i64 pass = 0; pass < rows; pass++) /* exchanges of neighbours, 16 columns side by side */
            for (i64 r = pass % 2; r + 1 < rows; r += 2) {
                w16 p = (w16)guess[r], q = (w16)guess[r + 1], change = (w16)((v16)q < (v16)p) & (p ^ q);
                guess[r] = (v16)(p ^ change), guess[r + 1] = (v16)(q ^ change);
            }
        v16 found = guess[rows / 2];
        if (rows % 2 == 0) found = (guess[rows / 2 - 1] + found) * 0.5f;
        found += 0.0f;
        memcpy(out + i, &found, (size_t)least(wide, stop - i) * 4);
    }
}

/* -- Hadamard ------------------------------------------------------------------------------------------------ */

/* Distances 1, 2, 4, 8 within 16 neighbours. */
INLINE v16 FN(within)(v16 x) {
    x = LANES(x, 1) + (v16)((w16)x ^ SIGNS(1));
    x = LANES(x, 2) + (v16)((w16)x ^ SIGNS(2));
    x = LANES(x, 4) + (v16)((w16)x ^ SIGNS(4));
    return LANES(x, 8) + (v16)((w16)x ^ SIGNS(8));
}

/* `radix` vectors `stride` apart: distances stride, 2 stride, 4 stride. */
#define BUTTERFLY(a, b) { FN(vec) d_ = a - b; a = a + b; b = d_; }
INLINE void FN(combine)(float *p, i64 stride, int radix, int first) {
    if (first)
        for (int k = 0; k < radix; k++) *(v16 *)(p + k * stride) = FN(within)(*(const v16 *)(p + k * stride));
    for (int part = 0; part < PARTS; part++, p += WIDTH) {
        FN(vec) v[8];
        for (int k = 0; k < radix; k++) v[k] = GIVEN(p + k * stride);
        for (int half = 1; half < radix; half *= 2)
            for (int k = 0; k < radix; k++)
                if (!(k & half)) BUTTERFLY(v[k], v[k | half])
        for (int k = 0; k < radix; k++) VEC(p + k * stride) = v[k];
    }
}

/* Distances from `unit` (at least 16) to length / 2, smaller ones first within each part: what is near is in cache. */
static void FN(stages)(float *p, i64 length, i64 unit) {
    if (length == unit) return;
    int radix = (int)least(8, length / unit);
    i64 stride = length / radix;
    for (int k = 0; k < radix; k++) FN(stages)(p + k * stride, stride, unit);
    if (radix == 8)
        for (i64 j = 0; j < stride; j += 16) FN(combine)(p + j, stride, 8, 0);
    else if (radix == 4)
        for (i64 j = 0; j < stride; j += 16) FN(combine)(p + j, stride, 4, 0);
    else
        for (i64 j = 0; j < stride; j += 16) FN(combine)(p + j, stride, 2, 0);
}

static void FN(block)(float *x, i64 length) {
    if (length < 16) {
        for (i64 half = 1; half < length; half *= 2)
            for (i64 i = 0; i < length; i++)
                if (!(i & half)) {
                    float a = x[i], b = x[i + half];
                    x[i] = a + b;
                    x[i + half] = a - b;
                }
        return;
    }
    if (length < 128) {
        for (i64 i = 0; i < length; i += 16) *(v16 *)(x + i) = FN(within)(*(const v16 *)(x + i));
        FN(stages)(x, length, 16);
        return;
    }
    for (i64 i = 0; i < length; i += 1024) { /* 4 KiB at a time through the first stages */
        i64 some = least(1024, length - i);
        for (i64 j = 0; j < some; j += 128) FN(combine)(x + i + j, 16, 8, 1);
        FN(stages)(x + i, some, 128);
    }
    if (length > 1024) FN(stages)(x, length, 1024);
}

/* What Fastfood's last pass does to entries `at` to `at + count` of the result, count a multiple of 16 up to 64. */
static inline void FN(signed_)(const float *from, const Draw *d, i64 at, i64 count, float scale, float *to) {
    u32 w = word(scale);
    for (i64 j = 0; j < count; j++)
        to[j] = from[j] * real(w ^ (mix((u32)(at + j), d->low, d->high) >> 18 & 1) << 31);
}

static void FN(sign)(const float *x, const Draw *d, i64 start, i64 stop, float scale, float *out) {
    FN(signed_)(x + start, d, start, stop - start, scale, out + start);
}

/* The distances from stride to stride * rows / 2 for `wide` columns, through a tile that is in cache. */
static void FN(column)(float *x, i64 first, i64 stride, i64 rows, i64 wide, float *tile, const Draw *d, float scale,
                       i64 size, float *out) {
    for (i64 r = 0; r < rows; r++) {
        const float *from = x + first + r * stride;
        for (i64 j = 0; j < wide; j += 16) *(v16 *)(tile + r * wide + j) = *(const v16 *)(from + j);
    }
    FN(stages)(tile, rows * wide, wide);
    if (d) {
        for (i64 r = 0; r < rows; r++) {
            i64 at = first + r * stride;
            if (at >= size) break;
            FN(signed_)(tile + r * wide, d, at, least(wide, size - at), scale, out + at);
        }
        return;
    }
    for (i64 r = 0; r < rows; r++) {
        float *to = x + first + r * stride;
        for (i64 j = 0; j < wide; j += 16) *(v16 *)(to + j) = *(const v16 *)(tile + r * wide + j);
    }
}

/* -- Fastfood ------------------------------------------------------------------------------------------------ */

/* Magnitude and sign of G, and the place each of 64 rows reads from. */
static inline void FN(rows)(const Draw *d, i64 start, u32 mask, u32 *index, u32 *flip, u32 *place) {
    for (int j = 0; j < 64; j++) {
        u32 i = (u32)start + (u32)j, h = mix(i, d->low, d->high);
        index[j] = h >> 20;
        flip[j] = h << 12 & 0x80000000u;
        for (int r = 0; r < 3; r++) {
            i = (i * d->times[r] + d->plus[r]) & d->all;
            i ^= i >> d->fold;
        }
        place[j] = i & mask;
    }
}

static void FN(expand)(const float *inner, u32 mask, const Draw *d, i64 start, i64 length, float *x) {
    u32 index[64], flip[64], place[64];
    float gauss[64], value[64];
    for (i64 i = 0; i < length; i += 64) {
        i64 some = least(64, length - i);
        FN(rows)(d, start + i, mask, index, flip, place);
        for (int j = 0; j < 64; j++) {
            ONE_BY_ONE;
            gauss[j] = d->table[index[j]], value[j] = inner[place[j]];
        }
        for (int j = 0; j < 64; j++) gauss[j] = real(word(gauss[j]) ^ flip[j]) * value[j];
        memcpy(x + i, gauss, (size_t)some * 4);
    }
}

/* x = B times the input, and zeros beyond it. */
static void FN(flip)(const float *input, const Draw *d, i64 start, i64 end, i64 stop, float *x) {
    i64 length = most(0, end - start);
    for (i64 j = 0; j < length; j++)
        x[j] = real(word(input[start + j]) ^ (mix((u32)(start + j), d->low, d->high) >> 18 & 1) << 31);
    memset(x + length, 0, (size_t)(stop - start - length) * 4);
}

static void FN(collect)(const float *x, const Draw *d, u32 mask, i64 start, i64 stop, float *sums) {
    u32 index[64], flip[64], place[64];
    float gauss[64];
    for (i64 i = start; i < stop; i += 64) {
        i64 some = least(64, stop - i);
        const float *v = x + i;
        SHORT(v, some)
        FN(rows)(d, i, mask, index, flip, place);
        for (int j = 0; j < 64; j++) {
            ONE_BY_ONE;
            gauss[j] = d->table[index[j]];
        }
        for (int j = 0; j < 64; j++) gauss[j] = real(word(gauss[j]) ^ flip[j]) * v[j];
        for (i64 j = 0; j < some; j++) sums[place[j]] += gauss[j];
    }
}

/* -- outer --------------------------------------------------------------------------------------------------- */

/* Rows times a scale each, as the nearest whole numbers of a magnitude of `most` at most, below 2^22; zeros below `dead`. */
static void FN(round_rows)(const float *x, const float *scales, i64 rows, i64 n, float dead, float most, float *out,
                           int32_t *whole) {
    for (i64 k = 0; k < rows; k++, x += n, out += n, whole += n) {
        float scale = scales[k];
        for (i64 i = 0; i < n; i++) {
            float y = x[i] * scale, size = __builtin_fabsf(y);
            y = y > most ? most : y < -most ? -most : y;
            float near = (y + 12582912.0f) - 12582912.0f; /* 1.5 times 2^23: beyond it floats have no fractions */
            out[i] = size < dead ? 0.0f : near;
            whole[i] = (int32_t)out[i];
        }
    }
}

/* Rows start to stop of the sum over k, in order, of left[k] right[k]T: 64 columns at a time, which stay in registers. */
static void FN(outer_sum)(const float *left, const float *right, i64 rank, i64 m, i64 n, i64 start, i64 stop, float *out) {
    for (i64 j = 0; j < n; j += 64) {
        i64 wide = least(64, n - j);
        for (i64 i = start; i < stop; i++) {
            if (wide == 64) {
                FN(vec) sums[4 * PARTS] = {{0}};
                for (i64 k = 0; k < rank; k++)
                    for (int p = 0; p < 4 * PARTS; p++) sums[p] += GIVEN(right + k * n + j + p * WIDTH) * left[k * m + i];
                for (int p = 0; p < 4 * PARTS; p++) VEC(out + i * n + j + p * WIDTH) = sums[p];
                continue;
            }
            float sums[64] = {0};
            for (i64 k = 0; k < rank; k++)
                for (i64 p = 0; p < wide; p++) sums[p] += right[k * n + j + p] * left[k * m + i];
            memcpy(out + i * n + j, sums, (size_t)wide * 4);
        }
    }
}

/* -- chain --------------------------------------------------------------------------------------------------- */

/* Examples are taken five at a time, beside as many rows of the weights as there are registers for. Rows of examples are
 * padded with zeros to whole vectors, and their number to a multiple of five; weights lie as they were given. A sum has
 * sixteen lanes at every level. */
#define ROWS 5
#if defined(AVX512)
#define ABREAST 4
#else
#define ABREAST 1
#endif

INLINE float FN(summed)(const FN(vec) *parts) {
    float lanes[16];
    memcpy(lanes, parts, sizeof lanes);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

/* The first entries of a row, and zeros: where a vector would reach beyond it. */
INLINE const float *FN(some)(const float *x, i64 length, float *room) {
    if (length >= 16) return x;
    memset(room, 0, 64);
    memcpy(room, x, (size_t)length * 4);
    return room;
}

/* Adds to the lanes of five examples what sixteen entries of a row of the weights, and theirs, give. */
INLINE void FN(along)(FN(vec) sums[ROWS][ABREAST][PARTS], int o, const float *x, i64 gap, const float *row) {
    for (int p = 0; p < PARTS; p++) {
        FN(vec) v = GIVEN(row + p * WIDTH);
        for (int b = 0; b < ROWS; b++) sums[b][o][p] += GIVEN(x + b * gap + p * WIDTH) * v;
    }
}

/* y[b][o] = bias[o] + x[b] . w[o], of five examples and `wide` outputs. */
INLINE void FN(dots)(const float *x, i64 gap, const float *w, const float *bias, i64 in, const int wide, float *y, i64 out_gap) {
    FN(vec) sums[ROWS][ABREAST][PARTS] = {{{{0}}}};
    i64 i = 0;
    for (; i + 16 <= in; i += 16)
        for (int o = 0; o < wide; o++) FN(along)(sums, o, x + i, gap, w + o * in + i);
    if (i < in)
        for (int o = 0; o < wide; o++) {
            float room[16];
            FN(along)(sums, o, x + i, gap, FN(some)(w + o * in + i, in - i, room));
        }
    for (int b = 0; b < ROWS; b++)
        for (int o = 0; o < wide; o++) y[b * out_gap + o] = FN(summed)(sums[b][o]) + (bias ? bias[o] : 0);
}

static void FN(linear)(const float *x, i64 gap, i64 rows, const float *w, const float *bias, i64 in, i64 out, float *y, i64 out_gap) {
    i64 o = 0;
    for (; o + ABREAST <= out; o += ABREAST)
        for (i64 b = 0; b < rows; b += ROWS)
            FN(dots)(x + b * gap, gap, w + o * in, bias ? bias + o : 0, in, ABREAST, y + b * out_gap + o, out_gap);
    for (; o < out; o++)
        for (i64 b = 0; b < rows; b += ROWS)
            FN(dots)(x + b * gap, gap, w + o * in, bias ? bias + o : 0, in, 1, y + b * out_gap + o, out_gap);
}

/* dx[b] += sum of dy[b][o] * w[o], of five examples and `wide` times sixteen inputs, or the `some` that there are. */
INLINE void FN(back)(const float *dy, i64 out_gap, const float *w, i64 in, i64 some, i64 out, const int wide, float *dx, i64 gap) {
    float room[16];
    FN(vec) sums[ROWS][ABREAST * PARTS];
    for (int r = 0; r < ROWS; r++)
        for (int p = 0; p < wide * PARTS; p++) sums[r][p] = GIVEN(dx + r * gap + p * WIDTH);
    for (i64 o = 0; o < out; o++) {
        const float *row = wide > 1 ? w + o * in : FN(some)(w + o * in, some, room);
        for (int p = 0; p < wide * PARTS; p++) {
            FN(vec) v = GIVEN(row + p * WIDTH);
            for (int r = 0; r < ROWS; r++) sums[r][p] += v * dy[r * out_gap + o];
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int p = 0; p < wide * PARTS; p++) VEC(dx + r * gap + p * WIDTH) = sums[r][p];
}

/* dx[b] = sum of dy[b][o] * w[o]. As many rows of the weights at a time as stay in the second cache, also where they lie
 * a multiple of 4 KiB apart. */
static void FN(linear_inputs)(const float *dy, i64 out_gap, i64 rows, const float *w, i64 in, i64 out, float *dx, i64 gap) {
    memset(dx, 0, (size_t)(rows * gap) * 4);
    for (i64 o = 0; o < out; o += 64)
        for (i64 i = 0; i < in;) {
            const int wide = ABREAST > 1 && i + 16 * ABREAST <= in;
            for (i64 b = 0; b < rows; b += ROWS) {
                const float *slopes = dy + b * out_gap + o, *row = w + o * in + i;
                float *to = dx + b * gap + i;
                if (wide) FN(back)(slopes, out_gap, row, in, 16, least(64, out - o), ABREAST, to, gap);
                else FN(back)(slopes, out_gap, row, in, in - i, least(64, out - o), 1, to, gap);
            }
            i += wide ? 16 * ABREAST : 16;
        }
}

/* into[o] += by * (sum of dy[b][o] * x[b]), of five examples and `wide` outputs. */
INLINE void FN(outer)(const float *x, i64 gap, const float *dy, i64 out_gap, float by, i64 in, const int wide, float *into) {
    float slopes[ROWS][ABREAST];
    for (int b = 0; b < ROWS; b++)
        for (int o = 0; o < wide; o++) slopes[b][o] = by * dy[b * out_gap + o];
    i64 i = 0;
    for (; i + WIDTH <= in; i += WIDTH) {
        FN(vec) sums[ABREAST];
        for (int o = 0; o < wide; o++) sums[o] = GIVEN(into + o * in + i);
        for (int b = 0; b < ROWS; b++) {
            FN(vec) v = GIVEN(x + b * gap + i);
            for (int o = 0; o < wide; o++) sums[o] += slopes[b][o] * v;
        }
        for (int o = 0; o < wide; o++) VEC(into + o * in + i) = sums[o];
    }
    for (; i < in; i++)
        for (int o = 0; o < wide; o++)
            for (int b = 0; b < ROWS; b++) into[o * in + i] += slopes[b][o] * x[b * gap + i];
}

static void FN(linear_weights)(const float *x, i64 gap, i64 rows, const float *dy, i64 out_gap, float by, i64 in, i64 out, float *into) {
    i64 o = 0;
    for (; o + ABREAST <= out; o += ABREAST)
        for (i64 b = 0; b < rows; b += ROWS) FN(outer)(x + b * gap, gap, dy + b * out_gap + o, out_gap, by, in, ABREAST, into + o * in);
    for (; o < out; o++)
        for (i64 b = 0; b < rows; b += ROWS) FN(outer)(x + b * gap, gap, dy + b * out_gap + o, out_gap, by, in, 1, into + o * in);
}

/* x yT, [out, in], of x [out, rank] and y [in, rank]; `turned` has room for yT. */
static void FN(compose)(const float *x, const float *y, i64 out, i64 in, i64 rank, float *turned, float *into) {
    for (i64 i = 0; i < in; i++)
        for (i64 k = 0; k < rank; k++) turned[k * in + i] = y[i * rank + k];
    memset(into, 0, (size_t)(out * in) * 4);
    for (i64 o = 0; o < out; o++, into += in)
        for (i64 k = 0; k < rank; k++) {
            float by = x[o * rank + k];
            for (i64 i = 0; i < in; i++) into[i] += by * turned[k * in + i];
        }
}

/* Adds what x and y owe to dx and dy, where the weights are x yT times `other` and dw are their derivatives; `turned` has
 * room for dyT, and for a row. */
static void FN(decompose)(const float *dw, const float *other, const float *x, const float *y, i64 out, i64 in, i64 rank, float *turned, float *dx, float *dy) {
    float *row = turned + rank * in;
    memset(turned, 0, (size_t)(rank * in) * 4);
    for (i64 o = 0; o < out; o++) {
        for (i64 i = 0; i < in; i++) row[i] = dw[o * in + i] * other[o * in + i];
        for (i64 k = 0; k < rank; k++) {
            float by = x[o * rank + k];
            for (i64 i = 0; i < in; i++) turned[k * in + i] += by * row[i];
        }
        for (i64 i = 0; i < in; i++)
            for (i64 k = 0; k < rank; k++) dx[o * rank + k] += row[i] * y[i * rank + k];
    }
    for (i64 i = 0; i < in; i++)
        for (i64 k = 0; k < rank; k++) dy[i * rank + k] += turned[k * in + i];
}

/* The largest magnitude of n numbers, as bits: those of a NaN are above those of infinity. */
static u32 FN(magnitude)(const float *x, i64 n) {
    u32 top = 0;
    for (i64 i = 0; i < n; i++) {
        u32 bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        top = bits > top ? bits : top;
    }
    return top;
}

/* One step: what the trainer and the request add to the gradients g, then w moves. Gradients of what stays do not count. */
static void FN(bend)(float *w, float *g, const Bend *b, i64 n) {
    if (b->mask) for (i64 i = 0; i < n; i++) g[i] *= b->mask[i];
    if (b->decay != 0) for (i64 i = 0; i < n; i++) g[i] += b->decay * w[i];
    if (b->anchor) for (i64 i = 0; i < n; i++) g[i] += b->prox * (w[i] - b->anchor[i]);
    if (b->offset) for (i64 i = 0; i < n; i++) g[i] += b->offset[i];
    if (b->velocity) for (i64 i = 0; i < n; i++) g[i] = b->velocity[i] = b->momentum * b->velocity[i] + g[i];
    if (b->mask) for (i64 i = 0; i < n; i++) g[i] *= b->mask[i];
    for (i64 i = 0; i < n; i++) w[i] -= b->lr * g[i];
    if (b->part) for (i64 i = 0; i < n; i++) w[i] += b->part[i];
}
#undef ROWS
#undef ABREAST
#undef WIDTH
#undef PARTS
#undef VEC
#undef GIVEN
