/* What convroom.c lays out and convnet.c computes with. */

#include "convnet.h"
#include <stdlib.h>
#include <string.h>

static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
static inline i64 most(i64 a, i64 b) { return a > b ? a : b; }

/* `by` times the row of floats that begins at `at`. */
typedef struct { i64 at; float by; } Owed;

/* How a convolution reads its inputs: floats of a row and of a pixel, from one output's inputs to the next one's, how
 * many numbers lie beside each other, and how often; weights of an output; floats of a pixel of the outputs. */
typedef struct { i64 kernel, row, gap, hop, run, runs, taps, wide; } Reach;

/* The pictures, or what a stage gives: floats of a pixel, a row and a picture, border included. */
typedef struct { i64 height, width, gap, border, row, image; float *y, *dy; } Slot;

typedef struct {
    Conv c;
    i64 down, across, height, width, wide, row_out; /* pixels of the convolution, and of what leaves; padded channels */
    const Slot *from, *more;
    Slot *to;
    int dense, tiled, winograd, fresh, fresh_more;  /* the way back; whether it is the first to write there */
    Reach reach, back;
    float *packed, *turned, *rows_of, *owed, *bias, *bias_owed;
    int32_t *winners;
    float *z, *dz, *mean, *scale, *shift, *slope;   /* of a norm: its inputs; dz: a picture's derivatives of them */
    double *moments, *sums;
    i64 dz_row, dz_border;
} Stage;

struct Net {
    const Front *front;
    i64 size, used;
    Slot *slots; /* the pictures, and of each stage what it gives */
    Stage *stages;
    float *room, *rows, *none, *planes, *products;
    Owed *by_channel, *by_pixel;
    i64 *counts;
};


static inline i64 padded(i64 n) { return (n + 15) / 16 * 16; }

/* Where the pixels of a picture begin, `edge` pixels of the border before them. */
static inline i64 at(const Slot *slot, i64 b, i64 edge) {
    return b * slot->image + (slot->border - edge) * (slot->row + slot->gap);
}

/* Rows of patches that are taken together, of `tiles` each: enough of them that weights are read for some at a time. */
static inline i64 together(i64 tiles, i64 rows) { return least(rows, most(1, 16 / tiles)); }
