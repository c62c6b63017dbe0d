// Philox4x32-10 on a CPU: the draws of `philox.draw`, for runs whose steps are compiled. The loop over counters has no
// calls and no branches, so that the compiler can vectorise it; PyTorch's flags for GCC disable that, hence the pragma.

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("tree-loop-vectorize", "fp-contract=fast")
#endif

#include <cstdint>

namespace {

enum Kind : uint32_t { NORMAL = 0, UNIFORM = 1, KEPT = 2 };
constexpr int64_t PART = 256;  // counters at a time: their draws stay in the nearest cache
constexpr float STEP = 1.0f / (1 << 24);

inline float unit(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word >> 8)) * STEP; }

// ln x for 0 < x ≤ 1: x = 2^e · m with m between √½ and √2, and a polynomial in m − 1 (Cephes' logf).
inline float logarithm(float x) {
    int32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    const int32_t e = (bits - 0x3f3504f3) >> 23;
    bits -= e << 23;
    float m;
    __builtin_memcpy(&m, &bits, 4);
    const float f = m - 1.0f, square = f * f;
    float p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    return static_cast<float>(e) * 0.69314718056f + (f + (f * square * p - 0.5f * square));
}

// √x for x ≥ 0 by way of 1/√x, a guess from the bits of x made better three times: the library's would see to errno.
inline float root(float x) {
    int32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    bits = 0x5f3759df - (bits >> 1);
    float y;
    __builtin_memcpy(&y, &bits, 4);
    for (int step = 0; step < 3; ++step) y *= 1.5f - 0.5f * x * y * y;
    return x * y;
}

// Two normals from two words (Box–Muller). The angle 2πu is within an eighth of a turn of q quarters, and the rest is
// small enough for short polynomials (Cephes' sinf and cosf).
inline void normals(uint32_t first, uint32_t second, float* one, float* two) {
    const float radius = root(-2.0f * logarithm(1.0f - unit(first)));
    const uint32_t turn = second >> 8, q = (turn + (1u << 21)) >> 22;
    const float x = static_cast<float>(static_cast<int32_t>(turn - (q << 22))) * (6.28318530718f * STEP), square = x * x;
    const float sine = x + x * square * (-1.6666654611e-1f + square * (8.3321608736e-3f - square * 1.9515295891e-4f));
    const float cosine = 1.0f - 0.5f * square +
        square * square * (4.1666645683e-2f + square * (-1.3887316255e-3f + square * 2.4433157118e-5f));
    const float up = (q & 1) ? cosine : sine, along = (q & 1) ? sine : cosine;
    *one = radius * (((q + 1) & 2) ? -along : along);
    *two = radius * ((q & 2) ? -up : up);
}

template <uint32_t KIND>
void part(float* out, int64_t first, uint32_t step, uint32_t k0, uint32_t k1) {
#pragma omp simd
    for (int64_t i = 0; i < PART; ++i) {
        uint32_t c0 = static_cast<uint32_t>(first + i), c1 = step, c2 = KIND, c3 = 0, a0 = k0, a1 = k1;
        for (int round = 0; round < 10; ++round) {
            const uint64_t a = static_cast<uint64_t>(c0) * 0xD2511F53u, b = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
            c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ a0;
            c1 = static_cast<uint32_t>(b);
            c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ a1;
            c3 = static_cast<uint32_t>(a);
            a0 += 0x9E3779B9u;
            a1 += 0xBB67AE85u;
        }
        if (KIND == NORMAL) {
            normals(c0, c1, out + 4 * i, out + 4 * i + 1);
            normals(c2, c3, out + 4 * i + 2, out + 4 * i + 3);
        } else {
            out[4 * i] = unit(c0);
            out[4 * i + 1] = unit(c1);
            out[4 * i + 2] = unit(c2);
            out[4 * i + 3] = unit(c3);
        }
    }
}

}  // namespace

// `size` draws in each row, rows `stride` draws apart: float32, or bytes where KEPT. `keys`: two words a row; `rates`: of
// what is not kept. `step` and keys are 32-bit numbers in 64 bits, as PyTorch holds them.
extern "C" void draw(void* out, int64_t rows, int64_t size, int64_t stride, const int64_t* keys, const int64_t* step,
                     const float* rates, int64_t first, int64_t kind, int64_t threads) {
    const int64_t parts = (size + 4 * PART - 1) / (4 * PART);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t number = 0; number < rows * parts; ++number) {
        const int64_t row = number / parts, begin = number % parts * (4 * PART);
        const int64_t count = size - begin < 4 * PART ? size - begin : 4 * PART;
        const uint32_t k0 = static_cast<uint32_t>(keys[2 * row]), k1 = static_cast<uint32_t>(keys[2 * row + 1]);
        const uint32_t now = static_cast<uint32_t>(*step);
        alignas(64) float drawn[4 * PART];
        if (kind == NORMAL) part<NORMAL>(drawn, first + begin / 4, now, k0, k1);
        else if (kind == UNIFORM) part<UNIFORM>(drawn, first + begin / 4, now, k0, k1);
        else part<KEPT>(drawn, first + begin / 4, now, k0, k1);
        if (kind == KEPT) {
            uint8_t* place = static_cast<uint8_t*>(out) + row * stride + begin;
            for (int64_t i = 0; i < count; ++i) place[i] = drawn[i] >= rates[row];
        } else {
            float* place = static_cast<float*>(out) + row * stride + begin;
            for (int64_t i = 0; i < count; ++i) place[i] = drawn[i];
        }
    }
}
