// The decoding kernel alone, on a layer of a 7B model: bytes read and written a second, beside a device-to-device copy.
//
// Needs no other object of the project.
//
//     nvcc -std=c++20 -O3 -I. --expt-relaxed-constexpr -gencode arch=compute_90a,code=sm_90a -DSLABSTREAM_BF16
//          -o build/decode_bench dev/decode_bench.cu
//     build/decode_bench [formats|tiles|all]
//
// `formats` prints a row for each format, and one for a mix as llama-quantize makes it. `tiles` prints the rates of
// other tiles. Copy and decoding take turns, and each number is a median. A layer is far larger than any cache, so
// repetitions read from memory. Outputs of other tiles must have the bits of the default one.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/decode_slab.cuh"

using namespace slab;

namespace {

void must(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
}

struct Memory {
    explicit Memory(size_t bytes) { must(cudaMalloc(&data, bytes), "cudaMalloc"); }
    ~Memory() { cudaFree(data); }
    Memory(const Memory&) = delete;
    std::byte* data = nullptr;
};

// ---- Random blocks with finite scales ----

__device__ uint32_t hash(uint64_t i) {
    i = (i ^ i >> 33) * 0xff51afd7ed558ccdull;
    i = (i ^ i >> 33) * 0xc4ceb9fe1a85ec53ull;
    return static_cast<uint32_t>(i ^ i >> 33);
}
__global__ void fill(uint32_t* words, size_t count) {
    const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) words[i] = hash(i);
}
// The exponents of the scales at `first` and `second` (-1: none) become ordinary; in float32 for NF4.
__global__ void tame(std::byte* blocks, size_t count, int block_bytes, int first, int second, bool float32) {
    const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    uint8_t* block = reinterpret_cast<uint8_t*>(blocks) + i * block_bytes;
    if (float32) {
        block[2] = block[2] & 0x7f, block[3] = 0x3c;
        return;
    }
    block[first + 1] = block[first + 1] & 0x83 | 0x20;
    if (second >= 0) block[second + 1] = block[second + 1] & 0x83 | 0x20;
}

void random_blocks(std::byte* blocks, BlockFormat format, size_t elems) {
    const BlockInfo& info = block_info(format);
    const size_t count = elems / info.values, words = count * info.bytes / 4;
    fill<<<cuda::grid_size(cuda::ceil_div(words, 256)), 256>>>(reinterpret_cast<uint32_t*>(blocks), words);
    if (format == BlockFormat::plain) return;
    const int second = decode::has_offset(format) ? 2 : -1;
    tame<<<cuda::grid_size(cuda::ceil_div(count, 256)), 256>>>(blocks, count, static_cast<int>(info.bytes),
                                                               format == BlockFormat::q6_k ? 208 : 0, second,
                                                               format == BlockFormat::nf4);
    must(cudaGetLastError(), "random blocks");
}

__global__ void count_differences(const uint32_t* a, const uint32_t* b, size_t words, unsigned long long* differences) {
    const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < words && a[i] != b[i]) atomicAdd(differences, 1ull);
}

// ---- A layer ----

constexpr size_t kHidden = 4096, kIntermediate = 11008;
// q, k, v, o, gate, up, down
constexpr size_t kMatrixElems[] = {kHidden * kHidden,     kHidden* kHidden,       kHidden* kHidden,
                                   kHidden* kHidden,      kHidden* kIntermediate, kHidden* kIntermediate,
                                   kHidden* kIntermediate};
constexpr size_t kMatrices = std::size(kMatrixElems);
constexpr size_t kLayerElems = 4 * kHidden * kHidden + 3 * kHidden * kIntermediate;
constexpr size_t kDecodedBytes = kLayerElems * sizeof(real);

struct Layer {
    std::string name;
    std::vector<BlockFormat> formats;  // [kMatrices]
    std::vector<DecodePiece> pieces;
    size_t encoded_bytes = 0;

    Layer(std::string name_, std::vector<BlockFormat> formats_, std::byte* encoded, std::byte* decoded)
        : name(std::move(name_)), formats(std::move(formats_)) {
        real* dst = reinterpret_cast<real*>(decoded);
        for (size_t i = 0; i < kMatrices; ++i) {
            const BlockInfo& info = block_info(formats[i]);
            random_blocks(encoded + encoded_bytes, formats[i], kMatrixElems[i]);
            pieces.push_back({formats[i], encoded + encoded_bytes, dst, kMatrixElems[i]});
            encoded_bytes += kMatrixElems[i] / info.values * info.bytes;
            dst += kMatrixElems[i];
        }
        must(cudaDeviceSynchronize(), name.c_str());
    }
};

Layer uniform(BlockFormat format, const Memory& encoded, const Memory& decoded) {
    return Layer(format == BlockFormat::plain ? std::string("plain ") + kPrecision : block_info(format).name,
                 std::vector<BlockFormat>(kMatrices, format), encoded.data, decoded.data);
}

// Half of the layers of a Q4_K_M file have v and down in Q6_K.
Layer mixed(const Memory& encoded, const Memory& decoded) {
    std::vector<BlockFormat> formats(kMatrices, BlockFormat::q4_k);
    formats[2] = formats[6] = BlockFormat::q6_k;
    return Layer("Q4_K, v and down Q6_K", std::move(formats), encoded.data, decoded.data);
}

// ---- Times ----

template <class T>
void start(const std::vector<DecodePiece>& pieces) {
    must(decode::launch<T>(pieces, nullptr), "decoding");
}

class Timer {
  public:
    Timer() {
        must(cudaEventCreate(&start_), "event");
        must(cudaEventCreate(&end_), "event");
    }
    ~Timer() { cudaEventDestroy(start_), cudaEventDestroy(end_); }
    double ms(const std::function<void()>& launch) {
        constexpr int kTimes = 10;
        must(cudaEventRecord(start_), "event");
        for (int i = 0; i < kTimes; ++i) launch();
        must(cudaEventRecord(end_), "event");
        must(cudaEventSynchronize(end_), "timed work");
        float ms = 0;
        must(cudaEventElapsedTime(&ms, start_, end_), "elapsed");
        return ms / kTimes;
    }

  private:
    cudaEvent_t start_, end_;
};

struct Rates {
    double ms, gbps, copy_gbps;
};

// Decoding and a copy of as many bytes, in turns.
Rates measure(const Layer& layer, const std::function<void()>& decode, const Memory& copy_to) {
    constexpr int kRounds = 15;
    Timer timer;
    const size_t moved_bytes = layer.encoded_bytes + kDecodedBytes, copied_bytes = moved_bytes / 2 / 16 * 16;
    const std::byte* from = reinterpret_cast<const std::byte*>(layer.pieces[0].dst);
    std::vector<double> decode_ms, copy_ms;
    for (int round = -2; round < kRounds; ++round) {
        const double d = timer.ms(decode);
        const double c = timer.ms([&] {
            must(cudaMemcpyAsync(copy_to.data, from, copied_bytes, cudaMemcpyDeviceToDevice, nullptr), "copy");
        });
        if (round < 0) continue;
        decode_ms.push_back(d), copy_ms.push_back(c);
    }
    std::sort(decode_ms.begin(), decode_ms.end());
    std::sort(copy_ms.begin(), copy_ms.end());
    const double d = decode_ms[kRounds / 2], c = copy_ms[kRounds / 2];
    return {d, static_cast<double>(moved_bytes) / d * 1e-6, 2 * static_cast<double>(copied_bytes) / c * 1e-6};
}

std::vector<BlockFormat> all_formats() {
    std::vector<BlockFormat> formats;
    for (int i = 1; i < kBlockFormats; ++i) formats.push_back(static_cast<BlockFormat>(i));
    formats.push_back(BlockFormat::plain);
    return formats;
}

void print_row(const Layer& layer, const Memory& copy_to) {
    const Rates r = measure(
        layer, [&] { start<decode::DefaultTile>(layer.pieces); }, copy_to);
    std::printf("| %s | %.1f | %.1f | %.4f | %.0f | %.0f | %.1f%% |\n", layer.name.c_str(),
                static_cast<double>(layer.encoded_bytes) * 1e-6, static_cast<double>(kDecodedBytes) * 1e-6, r.ms,
                r.gbps, r.copy_gbps, 100 * r.gbps / r.copy_gbps);
}

void print_formats(const Memory& encoded, const Memory& decoded, const Memory& copy_to) {
    std::printf("| format | encoded MB | decoded MB | ms a layer | GB/s | copy GB/s | of the copy |\n");
    std::printf("|---|---|---|---|---|---|---|\n");
    for (const BlockFormat format : all_formats()) print_row(uniform(format, encoded, decoded), copy_to);
    print_row(mixed(encoded, decoded), copy_to);
}

// One row: a tile, its share of the copy rate for some formats. Returns how many words differ from the default's.
template <class T>
unsigned long long print_tile(const char* name, const Memory& encoded, const Memory& decoded, const Memory& other) {
    unsigned long long all = 0;
    const Memory counter(sizeof all);
    must(cudaMemset(counter.data, 0, sizeof all), "counter");
    std::printf("| %s |", name);
    for (const BlockFormat format : {BlockFormat::q8_0, BlockFormat::q4_0, BlockFormat::q5_0, BlockFormat::q4_k,
                                     BlockFormat::q5_k, BlockFormat::q6_k, BlockFormat::nf4}) {
        const Layer layer = uniform(format, encoded, decoded);
        start<decode::DefaultTile>(layer.pieces);
        std::vector<DecodePiece> elsewhere = layer.pieces;
        for (DecodePiece& piece : elsewhere)
            piece.dst = reinterpret_cast<real*>(other.data) + (piece.dst - layer.pieces[0].dst);
        must(cudaMemset(other.data, 0xff, kDecodedBytes), "poison");
        start<T>(elsewhere);
        const size_t words = kDecodedBytes / 4;
        count_differences<<<cuda::grid_size(cuda::ceil_div(words, 256)), 256>>>(
            reinterpret_cast<const uint32_t*>(decoded.data), reinterpret_cast<const uint32_t*>(other.data), words,
            reinterpret_cast<unsigned long long*>(counter.data));
        const Rates r = measure(
            layer, [&] { start<T>(layer.pieces); }, other);
        std::printf(" %.1f%% |", 100 * r.gbps / r.copy_gbps);
    }
    must(cudaMemcpy(&all, counter.data, sizeof all, cudaMemcpyDeviceToHost), "differences");
    std::printf(" %s |\n", all == 0 ? "same" : "DIFFER");
    return all;
}

unsigned long long print_tiles(const Memory& encoded, const Memory& decoded, const Memory& other) {
    std::printf("| tile: values, threads, blocks an SM | Q8_0 | Q4_0 | Q5_0 | Q4_K | Q5_K | Q6_K | NF4 | bits |\n");
    std::printf("|---|---|---|---|---|---|---|---|---|\n");
    using decode::Tile;
    unsigned long long different = print_tile<decode::DefaultTile>("default", encoded, decoded, other);
    different += print_tile<Tile<2048, 256, 8>>("2048, 256, 8", encoded, decoded, other);
    different += print_tile<Tile<4096, 256, 8>>("4096, 256, 8", encoded, decoded, other);
    different += print_tile<Tile<8192, 256, 6>>("8192, 256, 6", encoded, decoded, other);
    different += print_tile<Tile<8192, 512, 4>>("8192, 512, 4", encoded, decoded, other);
    different += print_tile<Tile<4096, 128, 16>>("4096, 128, 16", encoded, decoded, other);
    different += print_tile<Tile<16384, 256, 8>>("16384, 256, 8", encoded, decoded, other);
    return different;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "all";
    cudaDeviceProp device;
    must(cudaGetDeviceProperties(&device, 0), "device");
    std::printf("%s, %s\n\n", device.name, kPrecision);
    const Memory encoded(kDecodedBytes), decoded(kDecodedBytes), other(kDecodedBytes);
    if (what != "tiles") print_formats(encoded, decoded, other);
    std::printf("\n");
    return what != "formats" && print_tiles(encoded, decoded, other) != 0 ? 1 : 0;
}
