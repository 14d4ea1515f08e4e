/* Convolutions before a chain of linear layers: what native.c asks of convnet.c. */

#include <stdint.h>

typedef int64_t i64;

/* A convolution with a square kernel and zeros around the picture, and what follows it, in this order: batch norm, the
 * sum with what another one gave, ReLU, the largest of 2 x 2. `source` and `add` are numbers of earlier ones; -1: the
 * pictures, or nothing. Weights [out, in, kernel, kernel], biases and the norm's two vectors lie in the model where
 * these say, the norm's running mean and variance behind each other in the client's statistics; -1: there are none. */
typedef struct {
    i64 in, out, kernel, stride, padding, relu, pool, source, add, weight, bias, scale, shift, running;
} Conv;

/* All of them, and the pictures they begin with. The linear layers take the means of channels, or all numbers. */
typedef struct {
    const Conv *convs;
    i64 depth, channels, height, width, means;
    double epsilon, momentum;
} Front;

typedef struct Net Net;

#define INNER __attribute__((visibility("hidden")))

/* The floats that batches of at most `size` pictures need; -1: no memory. */
i64 tw_room(const Front *front, i64 size);

/* A network in such a room, which began as zeros and has been of no other network or size; null: no memory. */
INNER Net *net_open(const Front *front, i64 size, float *room);
INNER void net_close(Net *net);

/* Picture b of the next batch, [channels, height, width]. */
INNER void net_take(Net *net, i64 b, const float *picture);

/* What the model w makes of `rows` pictures, one in a row of `features`, in torch's order; the norms' statistics move.
 * 1: not all that it made is finite. */
INNER int net_forward(Net *net, int level, const float *w, float *statistics, i64 rows, float *features, i64 gap);

/* Adds `by` times the derivatives of the same model to g, from those of its features. */
INNER void net_backward(Net *net, int level, const float *slopes, i64 gap, i64 rows, float by, float *g);
