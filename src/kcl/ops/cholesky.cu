// Cholesky factorisation and solve of one small symmetric positive definite matrix per thread block.
//
// The lower triangle lives in the registers of 16 x 16 threads: thread (ty, tx) holds the elements (16a + ty, 16b + tx)
// for all blocks b <= a. Sixteen columns at a time are finished, shown to all threads through shared memory and taken
// out of the rest. The right-hand sides ride along as further rows: class ty, index 16b + tx, so that the
// factorisation also does the forward substitution. The sixteen threads of one ty are half a warp: what they need of
// each other they shuffle.
//
// BLOCKS, the number of 16-blocks, is set when compiling. Rows beyond m are those of the identity.

#define SIDE (16 * BLOCKS)
#define EVERYONE 0xffffffffu
#define EACH(i, from, to) _Pragma("unroll") for (int i = (from); i < (to); i++)
#define EACH_DOWN(i, from, to) _Pragma("unroll") for (int i = (from); i >= (to); i--)
constexpr int AT_ONCE = BLOCKS > 13 ? 1 : 2;  // more would not fit the registers
// Distances between rows of sixteen that keep a warp's accesses in different banks.
#define ACROSS ((SIDE + 31) / 32 * 32 + 2)
#define ALONG ((SIDE + 31) / 32 * 32 + 16)

struct Shared {
    float panel[16 * ALONG];            // sixteen columns, or rows, of L
    float diagonal[BLOCKS][16][17];     // the blocks on the diagonal of L
    float inverse[SIDE];                // 1 / L_jj
    float right[16][18];                // sixteen columns of the right-hand sides
};

struct Thread {
    float lower[BLOCKS][BLOCKS];        // only b < a is used once a column is finished
    float right[BLOCKS];
    int tx, ty, m, c, first;            // first: the class of ty = 0
};

static __device__ __forceinline__ Thread begin(int m, int c) {
    Thread x;
    x.tx = threadIdx.x & 15, x.ty = threadIdx.x >> 4, x.m = m, x.c = c, x.first = 16 * blockIdx.y;
    return x;
}

static __device__ __forceinline__ void load_targets(Thread& x, const float* targets) {
    EACH(b, 0, BLOCKS) {
        int j = 16 * b + x.tx, k = x.first + x.ty;
        x.right[b] = j < x.m && k < x.c ? targets[j * x.c + k] : 0.0f;
    }
}

static __device__ __forceinline__ void store_solution(const Thread& x, float* out) {
    EACH(b, 0, BLOCKS) {
        int j = 16 * b + x.tx, k = x.first + x.ty;
        if (j < x.m && k < x.c) out[j * x.c + k] = x.right[b];
    }
}

// Lower blocks of column k to the panel: column tx, row 16a + ty.
static __device__ __forceinline__ void show_columns(const Thread& x, Shared& s, int k) {
    EACH(a, k + 1, BLOCKS) s.panel[x.tx * ACROSS + 16 * a + x.ty] = x.lower[a][k];
}

// The sixteen values of each class that were just solved, for all threads of the class: they are half a warp.
static __device__ __forceinline__ void show_solved(const Thread& x, Shared& s, int k) {
    __syncwarp();
    s.right[x.tx][x.ty] = x.right[k];
    __syncwarp();
}

// L' alpha = z, from the last block up.
static __device__ __forceinline__ void substitute_back(Thread& x, Shared& s) {
    EACH_DOWN(k, BLOCKS - 1, 0) {
        __syncthreads();
        EACH(b, 0, k) s.panel[x.ty * ALONG + 16 * b + x.tx] = x.lower[k][b];
        __syncthreads();
        #pragma unroll 4
        for (int t = 15; t >= 0; t--) {
            float alpha = __shfl_sync(EVERYONE, x.right[k], t, 16) * s.inverse[16 * k + t];
            float left = x.right[k] - s.diagonal[k][t][x.tx] * alpha;
            x.right[k] = x.tx == t ? alpha : x.tx < t ? left : x.right[k];
        }
        show_solved(x, s, k);
        #pragma unroll 4
        for (int t = 0; t < 16; t++) {
            float alpha = s.right[t][x.ty];
            EACH(b, 0, k) x.right[b] -= s.panel[t * ALONG + 16 * b + x.tx] * alpha;
        }
    }
}

// The Cholesky factor of a 16 x 16 block in place, by one warp; lane tx (and tx + 16, which does the same) holds row tx.
// The registers are turned by one place a step, so that one loop body serves all columns. What turns in is read from
// beyond the block, still inside Shared, and never used.
static __device__ __forceinline__ void factorise_block(float block[16][17], float* inverse, int tx) {
    float row[16];
    EACH(j, 0, 16) row[j] = block[tx][j];
    #pragma unroll 1
    for (int t = 0; t < 16; t++) {
        float root = rsqrtf(__shfl_sync(EVERYONE, row[0], t, 16));
        float here = row[0] * root;
        __syncwarp();
        block[tx][t] = tx < t ? 0.0f : here;
        if (tx == t) inverse[t] = root;
        __syncwarp();
        const float* column = &block[t][t];
        EACH(j, 1, 16) row[j - 1] = row[j] - here * column[17 * j];
    }
}

// K + lambda I = L L', then L L' alpha = Y. Writes L (SIDE x SIDE, lower triangle only) and alpha (m x c).
extern "C" __global__ void __launch_bounds__(256)
factorise_and_solve(const float* gram, const float* targets, const float* strength, float* factor, float* out,
                    int m, int c) {
    __shared__ Shared s;
    Thread x = begin(m, c);
    gram += (size_t)blockIdx.x * m * m;
    float shift = strength[blockIdx.x];
    EACH(a, 0, BLOCKS) EACH(b, 0, a + 1) {
        int i = 16 * a + x.ty, j = 16 * b + x.tx;
        float value = i < m && j < m ? gram[(size_t)i * m + j] : 0.0f;
        x.lower[a][b] = i == j ? (i < m ? value + shift : 1.0f) : value;
    }
    load_targets(x, targets + (size_t)blockIdx.x * m * c);
    EACH(k, 0, BLOCKS) {
        s.diagonal[k][x.ty][x.tx] = x.lower[k][k];
        __syncthreads();
        if (threadIdx.x < 32) factorise_block(s.diagonal[k], s.inverse + 16 * k, x.tx);
        __syncthreads();
        // The rows below: x L_kk' = a, sixteen columns one after another, all rows at once.
        #pragma unroll 1
        for (int t = 0; t < 16; t++) {
            float below = s.diagonal[k][x.tx][t], inverse = s.inverse[16 * k + t];
            EACH(a, k + 1, BLOCKS) {
                float done = __shfl_sync(EVERYONE, x.lower[a][k], t, 16) * inverse;
                x.lower[a][k] = x.tx == t ? done : x.tx > t ? x.lower[a][k] - done * below : x.lower[a][k];
            }
            float done = __shfl_sync(EVERYONE, x.right[k], t, 16) * inverse;
            x.right[k] = x.tx == t ? done : x.tx > t ? x.right[k] - done * below : x.right[k];
        }
        show_columns(x, s, k);
        s.right[x.tx][x.ty] = x.right[k];
        __syncthreads();
        #pragma unroll AT_ONCE
        for (int t = 0; t < 16; t++) {
            float across[BLOCKS];
            EACH(b, k + 1, BLOCKS) across[b] = s.panel[t * ACROSS + 16 * b + x.tx];
            EACH(a, k + 1, BLOCKS) {
                float down = s.panel[t * ACROSS + 16 * a + x.ty];
                EACH(b, k + 1, a + 1) x.lower[a][b] -= down * across[b];
            }
            float solved = s.right[t][x.ty];
            EACH(b, k + 1, BLOCKS) x.right[b] -= solved * across[b];
        }
    }
    if (blockIdx.y == 0) {
        factor += (size_t)blockIdx.x * SIDE * SIDE;
        EACH(a, 0, BLOCKS) EACH(b, 0, a + 1) {
            float value = a == b ? s.diagonal[a][x.ty][x.tx] : x.lower[a][b];
            factor[(16 * a + x.ty) * SIDE + 16 * b + x.tx] = value;
        }
    }
    substitute_back(x, s);
    store_solution(x, out + (size_t)blockIdx.x * m * c);
}

// L L' alpha = Y with a factor that factorise_and_solve wrote.
extern "C" __global__ void __launch_bounds__(256)
solve(const float* factor, const float* targets, float* out, int m, int c) {
    __shared__ Shared s;
    Thread x = begin(m, c);
    factor += (size_t)blockIdx.x * SIDE * SIDE;
    EACH(a, 0, BLOCKS) {
        EACH(b, 0, a) x.lower[a][b] = factor[(16 * a + x.ty) * SIDE + 16 * b + x.tx];
        float value = factor[(16 * a + x.ty) * SIDE + 16 * a + x.tx];
        s.diagonal[a][x.ty][x.tx] = value;
        if (x.tx == x.ty) s.inverse[16 * a + x.tx] = 1.0f / value;
    }
    load_targets(x, targets + (size_t)blockIdx.x * m * c);
    EACH(k, 0, BLOCKS) {
        __syncthreads();
        show_columns(x, s, k);
        __syncthreads();
        #pragma unroll 4
        for (int t = 0; t < 16; t++) {
            float solved = __shfl_sync(EVERYONE, x.right[k], t, 16) * s.inverse[16 * k + t];
            float left = x.right[k] - s.diagonal[k][x.tx][t] * solved;
            x.right[k] = x.tx == t ? solved : x.tx > t ? left : x.right[k];
        }
        show_solved(x, s, k);
        #pragma unroll 4
        for (int t = 0; t < 16; t++) {
            float solved = s.right[t][x.ty];
            EACH(b, k + 1, BLOCKS) x.right[b] -= s.panel[t * ACROSS + 16 * b + x.tx] * solved;
        }
    }
    substitute_back(x, s);
    store_solution(x, out + (size_t)blockIdx.x * m * c);
}
