/* Where the numbers of convolutions lie: every stage's weights, outputs and derivatives, in one piece of memory. */

#include "convstage.h"

/* The next part of the room; nowhere, while it is only measured. */
static float *part(Net *net, i64 floats) {
    float *at = net->room ? net->room + net->used : NULL;
    net->used += padded(floats);
    return at;
}

static void lay_out(Net *net) {
    const Front *f = net->front;
    i64 rows = 0, widest = 0, planes = 0;
    net->used = 0;
    for (i64 l = 0; l <= f->depth; l++) {
        Slot *slot = net->slots + l;
        slot->y = part(net, net->size * slot->image), slot->dy = l ? part(net, net->size * slot->image) : NULL;
    }
    for (Stage *s = net->stages; s < net->stages + f->depth; s++) {
        const i64 square = s->c.kernel * s->c.kernel, gap = s->from->gap, pixels = s->down * s->across;
        const i64 each = s->winograd ? 16 : 1, tiles = most(s->across, s->from->width) / 2;
        s->packed = part(net, each * s->wide * s->reach.taps);
        s->turned = part(net, s->tiled ? each * gap * s->back.taps : 0);
        s->rows_of = part(net, s->tiled ? 0 : s->wide * square * gap);
        s->owed = part(net, s->wide * gap * (s->winograd ? 16 : square));
        s->bias = part(net, s->wide), s->bias_owed = part(net, s->wide);
        s->winners = (int32_t *)part(net, s->c.pool ? net->size * s->height * s->width * s->wide : 0);
        s->dz = part(net, s->dense ? (s->down + 2 * s->dz_border) * s->dz_row : 0);
        if (s->c.scale >= 0) {
            s->z = part(net, net->size * pixels * s->wide);
            s->mean = part(net, s->wide), s->scale = part(net, s->wide), s->shift = part(net, s->wide);
            s->slope = part(net, s->wide);
            s->moments = (double *)part(net, 4 * s->wide), s->sums = (double *)part(net, 4 * s->wide);
        }
        rows = most(rows, 2 * s->across * s->wide), widest = most(widest, most(gap, s->wide));
        if (s->winograd) planes = most(planes, 16 * most(16, tiles) * most(gap, s->wide));
    }
    net->rows = part(net, rows), net->none = part(net, widest);
    net->planes = part(net, planes), net->products = part(net, planes);
}

/* Everything but where it lies. */
static Net *planned(const Front *front, i64 size) {
    Net *net = calloc(1, sizeof *net);
    if (!net) return NULL;
    net->front = front, net->size = size;
    net->slots = calloc((size_t)front->depth + 1, sizeof *net->slots);
    net->stages = calloc((size_t)front->depth, sizeof *net->stages);
    if (!net->slots || !net->stages) return net_close(net), NULL;
    *net->slots = (Slot){.height = front->height, .width = front->width, .gap = front->channels};
    i64 channel = 0, pixel = 0, counts = 0;
    for (i64 l = 0; l < front->depth; l++) {
        const Conv *c = front->convs + l;
        Slot *from = net->slots + c->source + 1, *to = net->slots + l + 1;
        const i64 step = c->pool ? 2 : 1, less = c->kernel - 2 * c->padding;
        Stage *s = net->stages + l;
        *s = (Stage){.c = *c, .from = from, .to = to, .wide = padded(c->out)};
        s->more = c->add < 0 ? NULL : net->slots + c->add + 1;
        s->height = ((from->height - less) / c->stride + 1) / step;
        s->width = ((from->width - less) / c->stride + 1) / step;
        s->down = s->height * step, s->across = s->width * step;
        s->dense = c->source < 0 || c->scale >= 0;
        s->tiled = c->source >= 0 && c->scale >= 0 && c->stride == 1 && c->padding < c->kernel;
        s->winograd = s->tiled && c->kernel == 3 && s->down % 2 == 0 && s->across % 2 == 0;
        from->border = most(from->border, c->padding);
        *to = (Slot){.height = s->height, .width = s->width, .gap = s->wide};
        channel = most(channel, s->wide * s->height * s->width), pixel = most(pixel, s->down * s->across * s->wide);
        counts = most(counts, s->wide + s->down * s->across);
    }
    for (i64 l = 0; l <= front->depth; l++) {
        Slot *slot = net->slots + l;
        slot->row = (slot->width + 2 * slot->border) * slot->gap;
        slot->image = (slot->height + 2 * slot->border) * slot->row;
    }
    for (Stage *s = net->stages + front->depth - 1; s >= net->stages; s--) {
        const i64 k = s->c.kernel, in = s->c.in, out = s->c.out, gap = s->from->gap, wide = s->wide;
        const i64 runs = gap == in ? 1 : k, back_runs = wide == out ? 1 : k;
        s->row_out = s->to->row;
        s->dz_border = s->tiled ? k - 1 - s->c.padding : 0, s->dz_row = (s->across + 2 * s->dz_border) * wide;
        s->reach = (Reach){k, s->from->row, gap, s->c.stride * gap, k / runs * in, runs, k * k * in, wide};
        s->back = (Reach){k, s->dz_row, wide, wide, k / back_runs * out, back_runs, k * k * out, gap};
        if (s->winograd) {
            s->reach = (Reach){1, 0, gap, gap, in, 1, in, wide};
            s->back = (Reach){1, 0, wide, wide, out, 1, out, gap};
        }
        /* On the way back the last of those that read a slot comes first; what it adds before what it convolves. */
        s->fresh_more = s->more != NULL, s->fresh = 1;
        for (Stage *t = s + 1; t < net->stages + front->depth; t++) {
            if (t->from == s->from || t->more == s->from) s->fresh = 0;
            if (t->from == s->more || t->more == s->more) s->fresh_more = 0;
        }
        if (s->more == s->from) s->fresh = 0;
    }
    net->by_channel = malloc((size_t)(channel + pixel) * sizeof(Owed));
    net->counts = malloc((size_t)counts * sizeof(i64));
    if (!net->by_channel || !net->counts) return net_close(net), NULL;
    net->by_pixel = net->by_channel + channel;
    lay_out(net);
    return net;
}

i64 tw_room(const Front *front, i64 size) {
    Net *net = planned(front, size);
    if (!net) return -1;
    i64 floats = net->used;
    net_close(net);
    return floats;
}

Net *net_open(const Front *front, i64 size, float *room) {
    Net *net = planned(front, size);
    if (!net) return NULL;
    net->room = room;
    lay_out(net);
    return net;
}

void net_close(Net *net) {
    free(net->by_channel), free(net->counts), free(net->stages), free(net->slots), free(net);
}

void net_take(Net *net, i64 b, const float *picture) {
    const Slot *slot = net->slots;
    float *to = slot->y + at(slot, b, 0);
    for (i64 c = 0; c < slot->gap; c++)
        for (i64 i = 0; i < slot->height; i++)
            for (i64 j = 0; j < slot->width; j++) to[i * slot->row + j * slot->gap + c] = *picture++;
}

