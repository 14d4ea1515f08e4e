/* Convolutions before a chain of linear layers: what native.c asks of convnet.c. */

#include <stdint.h>

typedef int64_t i64;

/* A convolution of stride 1 with a square kernel, zeros around the picture, then ReLU and the largest of 2 x 2 where they
 * are wanted; where its weights [out, in, kernel, kernel] and its bias lie in the model, -1 for none. */
typedef struct { i64 in, out, kernel, padding, relu, pool, weight, bias; } Conv;

/* All of them, and the pictures they begin with; null: none. */
typedef struct { const Conv *convs; i64 depth, channels, height, width; } Front;

typedef struct Net Net;

#define INNER __attribute__((visibility("hidden")))

/* Room for batches of at most `size` pictures; null where there is no memory. */
INNER Net *net_open(const Front *front, i64 size);
INNER void net_close(Net *net);

/* Picture b of the next batch, [channels, height, width]. */
INNER void net_take(Net *net, i64 b, const float *picture);

/* What the model w makes of `rows` pictures, each [channels, height, width] in a row of `features`. 1: not all is finite. */
INNER int net_forward(Net *net, int level, const float *w, i64 rows, float *features, i64 gap);

/* Adds `by` times the derivatives of the same model to g, from those of its features. */
INNER void net_backward(Net *net, int level, const float *slopes, i64 gap, i64 rows, float by, float *g);
