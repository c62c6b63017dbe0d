// Cholesky factorisation and solve of one small symmetric positive definite matrix per thread block.
//
// The lower triangle lives in the registers of 16 x 16 threads: thread (ty, tx) holds the elements (16a + ty, 16b + tx)
// for all blocks b <= a. One column at a time is shown to all threads through shared memory. The right-hand sides
// ride along as further rows, so that the factorisation also does the forward substitution.
//
// BLOCKS, the number of 16-blocks, is set when compiling. Rows beyond m are those of the identity.

#define SIDE (16 * BLOCKS)
#define FOR_BLOCKS(a, from, to) _Pragma("unroll") for (int a = (from); a < (to); a++)

struct Block {
    float lower[BLOCKS][BLOCKS];  // only b <= a is ever used
    float right[BLOCKS];          // right-hand side of class ty at index 16b + tx
    int tx, ty, m, c, first;      // first: the class of ty = 0
};

static __device__ __forceinline__ void load_targets(Block& x, const float* targets) {
    FOR_BLOCKS(b, 0, BLOCKS) {
        int j = 16 * b + x.tx, k = x.first + x.ty;
        x.right[b] = j < x.m && k < x.c ? targets[j * x.c + k] : 0.0f;
    }
}

static __device__ __forceinline__ void store_solution(const Block& x, float* out) {
    FOR_BLOCKS(b, 0, BLOCKS) {
        int j = 16 * b + x.tx, k = x.first + x.ty;
        if (j < x.m && k < x.c) out[j * x.c + k] = x.right[b];
    }
}

// From the last row up: alpha_j = z_j / L_jj, then z_i -= L_ji alpha_j for i < j.
static __device__ __forceinline__ void substitute_back(Block& x, float shown[2][SIDE + 16]) {
    __syncthreads();
    FOR_BLOCKS(r, 0, BLOCKS) {
        const int k = BLOCKS - 1 - r;
        #pragma unroll 1
        for (int t = 15; t >= 0; t--) {
            float* row = shown[t & 1];
            if (x.ty == t) FOR_BLOCKS(b, 0, k + 1) row[16 * b + x.tx] = x.lower[k][b];
            __syncthreads();
            float alpha = __shfl_sync(0xffffffffu, x.right[k], t, 16) / row[16 * k + t];
            if (x.tx == t) x.right[k] = alpha;
            else if (x.tx < t) x.right[k] -= row[16 * k + x.tx] * alpha;
            FOR_BLOCKS(b, 0, k) x.right[b] -= row[16 * b + x.tx] * alpha;
        }
    }
}

// K + lambda I = L L', then L L' alpha = Y. Writes L (SIDE x SIDE, lower triangle only) and alpha (m x c).
extern "C" __global__ void __launch_bounds__(256)
factorise_and_solve(const float* gram, const float* targets, const float* strength, float* factor, float* out,
                    int m, int c) {
    __shared__ float shown[2][SIDE + 16];
    Block x;
    x.tx = threadIdx.x & 15, x.ty = threadIdx.x >> 4, x.m = m, x.c = c, x.first = 16 * blockIdx.y;
    gram += (size_t)blockIdx.x * m * m;
    float shift = strength[blockIdx.x];
    FOR_BLOCKS(a, 0, BLOCKS) FOR_BLOCKS(b, 0, a + 1) {
        int i = 16 * a + x.ty, j = 16 * b + x.tx;
        float value = i < m && j < m ? gram[(size_t)i * m + j] : 0.0f;
        x.lower[a][b] = i == j ? (i < m ? value + shift : 1.0f) : value;
    }
    load_targets(x, targets + (size_t)blockIdx.x * m * c);
    FOR_BLOCKS(k, 0, BLOCKS) {
        #pragma unroll 1
        for (int t = 0; t < 16; t++) {
            float* column = shown[t & 1];
            if (x.tx == t) {
                FOR_BLOCKS(a, k, BLOCKS) column[16 * a + x.ty] = x.lower[a][k];
                column[SIDE + x.ty] = x.right[k];
            }
            __syncthreads();
            float root = 1.0f / sqrtf(column[16 * k + t]);
            float across[BLOCKS];
            FOR_BLOCKS(b, k, BLOCKS) across[b] = column[16 * b + x.tx] * root;
            float later = x.tx > t ? across[k] : 0.0f;  // columns up to this one are finished
            FOR_BLOCKS(a, k, BLOCKS) {
                float down = column[16 * a + x.ty] * root;
                x.lower[a][k] = x.tx == t ? down : x.lower[a][k] - down * later;
                FOR_BLOCKS(b, k + 1, a + 1) x.lower[a][b] -= down * across[b];
            }
            float solved = column[SIDE + x.ty] * root;
            x.right[k] = x.tx == t ? solved : x.right[k] - solved * later;
            FOR_BLOCKS(b, k + 1, BLOCKS) x.right[b] -= solved * across[b];
        }
    }
    if (blockIdx.y == 0) {
        factor += (size_t)blockIdx.x * SIDE * SIDE;
        FOR_BLOCKS(a, 0, BLOCKS) FOR_BLOCKS(b, 0, a + 1) {
            factor[(16 * a + x.ty) * SIDE + 16 * b + x.tx] = x.lower[a][b];
        }
    }
    substitute_back(x, shown);
    store_solution(x, out + (size_t)blockIdx.x * m * c);
}

// L L' alpha = Y with a factor that factorise_and_solve wrote.
extern "C" __global__ void __launch_bounds__(256)
solve(const float* factor, const float* targets, float* out, int m, int c) {
    __shared__ float shown[2][SIDE + 16];
    Block x;
    x.tx = threadIdx.x & 15, x.ty = threadIdx.x >> 4, x.m = m, x.c = c, x.first = 16 * blockIdx.y;
    factor += (size_t)blockIdx.x * SIDE * SIDE;
    FOR_BLOCKS(a, 0, BLOCKS) FOR_BLOCKS(b, 0, a + 1) {
        x.lower[a][b] = factor[(16 * a + x.ty) * SIDE + 16 * b + x.tx];
    }
    load_targets(x, targets + (size_t)blockIdx.x * m * c);
    FOR_BLOCKS(k, 0, BLOCKS) {
        #pragma unroll 1
        for (int t = 0; t < 16; t++) {
            float* column = shown[t & 1];
            if (x.tx == t) FOR_BLOCKS(a, k, BLOCKS) column[16 * a + x.ty] = x.lower[a][k];
            __syncthreads();
            float solved = __shfl_sync(0xffffffffu, x.right[k], t, 16) / column[16 * k + t];
            if (x.tx == t) x.right[k] = solved;
            else if (x.tx > t) x.right[k] -= column[16 * k + x.tx] * solved;
            FOR_BLOCKS(b, k + 1, BLOCKS) x.right[b] -= column[16 * b + x.tx] * solved;
        }
    }
    substitute_back(x, shown);
    store_solution(x, out + (size_t)blockIdx.x * m * c);
}
