"""The scan's two kernels, as CUDA C++.

Steps are numbered in the order in which they are applied: step i maps state i to state i + 1, and
state 0 is the vector of the scan. A *node* stands for one or more steps, and maps v to Q v + g. The
tree is divided into *rounds*: a *span* of `width` = 2^k nodes becomes one node of the next round,
so that one launch goes up k levels, and one launch goes down k levels.

    up      Computes the totals of spans: Q <- A Q, g <- A g + a, node by node. Span 0 (the left
            spine of the tree) has the vector: its total is a vector, by matrix x vector alone. The
            last span (the right spine) has no total, since an exclusive scan does not need it.
    chain   Computes the states within each span from the state before it: v <- A v + a. It is both
            the down-sweep and the serial pass over the nodes at the top, as one span. The state
            after a span's last node is the first of the next span, which the round above has.

Threads work in *teams*, one for a span of one example; a block has several teams if they are small.
A team reads the matrices of the next *group* of nodes into registers while it works on the current
group in shared memory, so that arithmetic hides the latency of global memory. In shared memory
matrices are stored by columns, A[i][k] at k * PITCH + i. In `chain` thread i computes element i of
the new state, and neighboring threads read neighboring elements. In `up` a thread computes a tile
of 4 x 4 elements, for which it reads four elements of A and four of Q at each k. Back-propagation
applies transposed Jacobians, which this order reads without a transposition.

Nothing is multiplied by an identity or masked by a zero: a total begins as a copy of its first
node. Rows and columns that only pad tiles have arbitrary values, which no element reads. A value
that is infinite or NaN therefore affects only the results that depend on it.

Per step and example: `up` reads H^2 values and makes H^3 multiplications (none where the plan has
no rounds); `chain` reads H^2, and makes as many.

Source: Shang Wang, Yifan Bai, Gennady Pekhimenko, "BPPSA: Scaling Back-propagation by Parallel Scan
Algorithm", MLSys 2020 (arXiv:1907.10134). There each level is a launch of its own; that blocks go
through several levels at once is as in Duane Merrill and Michael Garland, "Single-pass Parallel
Prefix Scan with Decoupled Look-back", NVIDIA 2016, section 3 (reduce-then-scan).
"""

SOURCE = r"""
// RINGAR_REAL and the numbers come from `Shape.defines` in ringar/cupy/plan.py.
#ifndef RINGAR_EXPORT
#define RINGAR_EXPORT extern "C"
#endif
typedef RINGAR_REAL real;
typedef long long wide;

constexpr int H = RINGAR_H;
constexpr bool AFFINE = RINGAR_AFFINE;
constexpr int SQUARE = H * H;
constexpr int SIDE = (H + 3) / 4;        // tiles in a row of tiles
constexpr int TILES = SIDE * SIDE;
constexpr int PITCH = 4 * (SIDE | 1);    // an odd number of quads: rows begin in different banks
constexpr int MATRIX = H * PITCH;

struct alignas(16) Quad {
  real at[4];
};

// Where nodes or states lie: number i of example b is row (first + i * step) * batch + b.
struct Place {
  wide first, step;
};

template <int TEAM>
__device__ __forceinline__ void team_sync() {
  // Teams of up to a warp never leave it; larger ones have the block to themselves or go in step.
  if (TEAM <= 32) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// The matrices (and addends) of one group on their way from global to shared memory.
template <int TEAM, int GROUP, bool TRANSPOSED>
struct Stage {
  static constexpr int VALUES = (SQUARE + TEAM - 1) / TEAM;
  real matrices[GROUP][VALUES];
  real addends[AFFINE ? GROUP : 1];

  __device__ __forceinline__ void read(const real* nodes, const real* added, Place place,
                                       wide first, int count, int batch, int b, int lane) {
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
      if (g >= count) continue;
      const wide number = (place.first + (first + g) * place.step) * batch + b;
#pragma unroll
      for (int v = 0; v < VALUES; ++v) {
        const int e = lane + v * TEAM;
        if (e < SQUARE) matrices[g][v] = nodes[number * SQUARE + e];
      }
      if (AFFINE && lane < H) addends[g] = added[number * H + lane];
    }
  }

  __device__ __forceinline__ void write(real* to, real* to_addends, int count, int lane) const {
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
      if (g >= count) continue;
#pragma unroll
      for (int v = 0; v < VALUES; ++v) {
        const int e = lane + v * TEAM, row = e / H, column = e % H;
        if (e < SQUARE) {
          to[g * MATRIX + (TRANSPOSED ? row * PITCH + column : column * PITCH + row)] =
              matrices[g][v];
        }
      }
      if (AFFINE && lane < H) to_addends[g * PITCH + lane] = addends[g];
    }
  }
};

// Element i of A v + a; four sums, so that one addition need not wait for the one before.
__device__ __forceinline__ real row_times(const real* a, const real* v, const real* addend, int i) {
  real sums[4] = {AFFINE ? addend[i] : real(0), real(0), real(0), real(0)};
#pragma unroll
  for (int k = 0; k < H; ++k) sums[k % 4] += a[k * PITCH + i] * v[k];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// A tile of A Q: rows from i, columns from j, both multiples of 4.
__device__ __forceinline__ void tile_product(const real* a, const real* q, int i, int j,
                                             real (&tile)[4][4]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int s = 0; s < 4; ++s) tile[r][s] = real(0);
  }
#pragma unroll 4
  for (int k = 0; k < H; ++k) {
    const Quad left = *reinterpret_cast<const Quad*>(a + k * PITCH + i);
    const Quad right = *reinterpret_cast<const Quad*>(q + k * PITCH + j);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int s = 0; s < 4; ++s) tile[r][s] += left.at[r] * right.at[s];
    }
  }
}

// Totals of the first `spans` spans, all of which have `width` nodes. `start` [batch, H] is
// the state before node `skip`; with skip = 1 node 0 is the spine's, and has no matrix.
template <bool TRANSPOSED>
__device__ __forceinline__ void up(real* memory, const real* nodes, const real* addends,
                                   Place place, const real* start, real* totals,
                                   real* total_addends, real* state, int width, int spans,
                                   int batch, int skip) {
  constexpr int TEAM = RINGAR_UP_TEAM, GROUP = RINGAR_UP_GROUP;
  static_assert(TEAM >= TILES && TEAM >= H, "a thread per tile, and per row");
  static_assert((GROUP + 1) * MATRIX + (GROUP + 1) * PITCH <= RINGAR_UP_REALS, "shared memory");
  const int lane = threadIdx.x % TEAM, team = threadIdx.x / TEAM;
  const wide item = wide(blockIdx.x) * (blockDim.x / TEAM) + team;
  const int span = int(item / batch), b = int(item % batch);
  // Teams without a span go along: they meet every barrier, and read and write nothing.
  const bool active = span < spans, spine = span == 0;
  const int row = lane / SIDE * 4, column = lane % SIDE * 4;

  real* const a = memory + team * RINGAR_UP_REALS;
  real* const q = a + GROUP * MATRIX;
  real* const v = q + MATRIX;
  real* const added = v + PITCH;

  if (active && spine && lane < H) v[lane] = start[wide(b) * H + lane];
  Stage<TEAM, GROUP, TRANSPOSED> stage;
  const wide first = wide(span) * width;
  if (active) stage.read(nodes, addends, place, first, min(GROUP, width), batch, b, lane);

  for (int done = 0; done < width; done += GROUP) {
    const int count = min(GROUP, width - done), next = done + GROUP;
    // All of the team have left the group before, at the last barrier of its last node.
    if (active) stage.write(a, added, count, lane);
    team_sync<TEAM>();
    if (active && next < width) {
      stage.read(nodes, addends, place, first + next, min(GROUP, width - next), batch, b, lane);
    }
    for (int g = 0; g < count; ++g) {
      const int i = done + g;
      const real* const node = a + g * MATRIX;
      const bool product = active && !spine && i > 0 && lane < TILES;
      const bool turn = active && lane < H && (spine ? i >= skip : AFFINE && i > 0);
      real tile[4][4], turned = real(0);
      if (product) tile_product(node, q, row, column, tile);
      if (turn) turned = row_times(node, v, added + g * PITCH, lane);
      team_sync<TEAM>();
      if (product) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          if (row + r >= H) continue;
          const Quad line = {tile[r][0], tile[r][1], tile[r][2], tile[r][3]};
          *reinterpret_cast<Quad*>(q + (row + r) * PITCH + column) = line;
        }
      }
      if (turn) v[lane] = turned;
      if (active && !spine && i == 0) {
        for (int e = lane; e < SQUARE; e += TEAM) {
          q[e / H * PITCH + e % H] = node[e % H * PITCH + e / H];
        }
        if (AFFINE && lane < H) v[lane] = added[lane];
      }
      team_sync<TEAM>();
    }
  }

  if (!active) return;
  if (spine) {
    if (lane < H) state[wide(b) * H + lane] = v[lane];
    return;
  }
  for (int e = lane; e < SQUARE; e += TEAM) totals[item * SQUARE + e] = q[e / H * PITCH + e % H];
  if (AFFINE && lane < H) total_addends[item * H + lane] = v[lane];
}

// The states of each span, from that before its first node: `starts` [spans, batch, H], for
// span 0 `start` [batch, H], which is the state before node `skip`. With last = 1 the state
// after the last of the `nodes_left` nodes is written, too.
template <bool TRANSPOSED>
__device__ __forceinline__ void chain(real* memory, const real* nodes, const real* addends,
                                      Place place, const real* start, const real* starts,
                                      real* states, Place states_place, int width, int nodes_left,
                                      int spans, int batch, int skip, int last) {
  constexpr int TEAM = RINGAR_CHAIN_TEAM, GROUP = RINGAR_CHAIN_GROUP;
  static_assert(TEAM >= H && TEAM % 32 == 0, "a thread per row, in whole warps");
  static_assert(GROUP * MATRIX + (GROUP + 2) * PITCH <= RINGAR_CHAIN_REALS, "shared memory");
  const int lane = threadIdx.x % TEAM, team = threadIdx.x / TEAM;
  const wide item = wide(blockIdx.x) * (blockDim.x / TEAM) + team;
  const int span = int(item / batch), b = int(item % batch);
  const bool active = span < spans;
  const wide first = wide(span) * width + (span == 0 ? skip : 0);
  const wide end = min((wide(span) + 1) * width, wide(nodes_left)) - 1 +
                   (span == spans - 1 ? last : 0);
  const int steps = active && end > first ? int(end - first) : 0;

  real* const a = memory + team * RINGAR_CHAIN_REALS;
  real* now = a + GROUP * MATRIX;
  real* then = now + PITCH;
  real* const added = then + PITCH;
  real* to = states + ((states_place.first + first * states_place.step) * batch + b) * H + lane;
  const wide stride = states_place.step * batch * H;

  if (active && lane < H) {
    const real* from = span == 0 ? start : starts + wide(span) * batch * H;
    *to = now[lane] = from[wide(b) * H + lane];
  }
  Stage<TEAM, GROUP, TRANSPOSED> stage;
  stage.read(nodes, addends, place, first, min(GROUP, steps), batch, b, lane);

  // As many rounds for every team of the block, whatever its steps: barriers are for all.
  for (int done = 0; done < width; done += GROUP) {
    const int count = max(0, min(GROUP, steps - done)), next = done + GROUP;
    stage.write(a, added, count, lane);
    __syncthreads();
    stage.read(nodes, addends, place, first + next, min(GROUP, steps - next), batch, b, lane);
    // Up to 32 rows are a warp's, which waits for nobody; with more the block is one team, and
    // `count` is the same for all of it.
    if (H > 32 || lane < 32) {
      for (int g = 0; g < count; ++g) {
        if (lane < H) {
          to += stride;
          *to = then[lane] = row_times(a + g * MATRIX, now, added + g * PITCH, lane);
        }
        real* const other = now;
        now = then;
        then = other;
        if (H > 32) {
          __syncthreads();
        } else {
          __syncwarp();
        }
      }
    }
    __syncthreads();
  }
}

#define RINGAR_KERNELS(NAME, TRANSPOSED)                                                         \
  RINGAR_EXPORT __global__ void __launch_bounds__(RINGAR_UP_THREADS)                             \
      up_##NAME(const real* nodes, const real* addends, wide node_first, wide node_step,         \
                const real* start, real* totals, real* total_addends, real* state, int width,    \
                int spans, int batch, int skip) {                                                \
    extern __shared__ Quad ringar_shared[];                                                      \
    up<TRANSPOSED>(reinterpret_cast<real*>(ringar_shared), nodes, addends,                       \
                   Place{node_first, node_step}, start, totals, total_addends, state, width,     \
                   spans, batch, skip);                                                          \
  }                                                                                              \
  RINGAR_EXPORT __global__ void __launch_bounds__(RINGAR_CHAIN_THREADS)                          \
      chain_##NAME(const real* nodes, const real* addends, wide node_first, wide node_step,      \
                   const real* start, const real* starts, real* states, wide state_first,        \
                   wide state_step, int width, int nodes_left, int spans, int batch,             \
                   int skip, int last) {                                                         \
    extern __shared__ Quad ringar_shared[];                                                      \
    chain<TRANSPOSED>(reinterpret_cast<real*>(ringar_shared), nodes, addends,                    \
                      Place{node_first, node_step}, start, starts, states,                       \
                      Place{state_first, state_step}, width, nodes_left, spans, batch, skip,     \
                      last);                                                                     \
  }

RINGAR_KERNELS(plain, false)
RINGAR_KERNELS(transposed, true)
"""
