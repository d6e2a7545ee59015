// SPDX-License-Identifier: Apache-2.0
// What tests on a GPU share. They skip themselves, with a message, where no device answers.
#ifndef BRIGADE_TESTS_OPTIM_GPU_H
#define BRIGADE_TESTS_OPTIM_GPU_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "brigade/dtype.h"
#include "sched/device/kernels.h"
#include "sched/half.h"

extern "C" const brg_kernels *brg_cuda_kernels(int abi);

// For cudaError_t values, of CUDA and of the table of kernels. GoogleTest reports what is thrown.
#define CUDA_CHECK(call)                                                                           \
    do {                                                                                           \
        int cuda_check_error = (int)(call);                                                        \
        if (cuda_check_error != 0)                                                                 \
            throw std::runtime_error(std::string(#call ": ") +                                     \
                                     cudaGetErrorString((cudaError_t)cuda_check_error));           \
    } while (0)

class gpu_test : public testing::Test
{
  protected:
    void SetUp() override
    {
        int devices = 0;
        cudaError_t error = cudaGetDeviceCount(&devices);
        if (error != cudaSuccess || devices == 0)
            GTEST_SKIP() << "no CUDA device answers: " << cudaGetErrorString(error);
        kernels = brg_cuda_kernels(BRG_KERNELS_ABI);
        ASSERT_NE(kernels, nullptr);
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }

    void TearDown() override
    {
        if (stream)
            CUDA_CHECK(cudaStreamDestroy(stream));
    }

    void wait()
    {
        CUDA_CHECK(cudaStreamSynchronize(stream));
    }

    const brg_kernels *kernels = nullptr;
    cudaStream_t stream = nullptr;
};

class device_memory
{
  public:
    explicit device_memory(size_t bytes)
    {
        CUDA_CHECK(cudaMalloc(&data_, bytes));
    }
    ~device_memory()
    {
        cudaFree(data_);
    }
    device_memory(const device_memory &) = delete;
    device_memory &operator=(const device_memory &) = delete;
    char *data() const
    {
        return (char *)data_;
    }

  private:
    void *data_ = nullptr;
};

// One value of page-locked host memory, or an array of them.
template <typename T> class pinned
{
  public:
    explicit pinned(size_t count = 1)
    {
        CUDA_CHECK(cudaMallocHost((void **)&data_, count * sizeof(T)));
        std::memset((void *)data_, 0xa5, count * sizeof(T));
    }
    ~pinned()
    {
        cudaFreeHost(data_);
    }
    pinned(const pinned &) = delete;
    pinned &operator=(const pinned &) = delete;
    T *data() const
    {
        return data_;
    }
    T &operator[](size_t i) const
    {
        return data_[i];
    }

  private:
    T *data_ = nullptr;
};

// Arrays in one stretch of device memory and its image on the host. Everything between the arrays
// is poison, and so are the arrays until they are written. After the kernels ran, check_others()
// compares all bytes outside of the arrays that were declared as outputs.
class arena
{
  public:
    enum : uint8_t { POISON = 0xa5 };

    // Reserves `bytes` at an address that is `misalignment` bytes beyond a multiple of
    // 256. Returns the array's offset.
    size_t add(size_t bytes, size_t misalignment = 0, bool output = false)
    {
        size_t offset = (image_.size() + 64 + 255) / 256 * 256 + misalignment;
        image_.resize(offset + bytes + 64, POISON);
        outputs_.resize(image_.size(), false);
        for (size_t i = offset; output && i < offset + bytes; i++)
            outputs_[i] = true;
        return offset;
    }

    // A copy of `values` on the device after upload().
    template <typename T>
    size_t add_values(const std::vector<T> &values, size_t misalignment = 0, bool output = false)
    {
        size_t offset = add(values.size() * sizeof(T), misalignment, output);
        if (!values.empty())
            std::memcpy(image_.data() + offset, values.data(), values.size() * sizeof(T));
        return offset;
    }

    // Allocates; no array may be added any more.
    void allocate()
    {
        memory_.reset(new device_memory(image_.size()));
    }

    // A copy from pageable memory may return before its end has arrived, and the tests' streams wait
    // for no other.
    void upload()
    {
        CUDA_CHECK(
            cudaMemcpy(memory_->data(), image_.data(), image_.size(), cudaMemcpyHostToDevice));
        CUDA_CHECK(cudaDeviceSynchronize());
    }

    void download()
    {
        result_.resize(image_.size());
        CUDA_CHECK(
            cudaMemcpy(result_.data(), memory_->data(), result_.size(), cudaMemcpyDeviceToHost));
    }

    template <typename T = void> T *device(size_t offset) const
    {
        return (T *)(memory_->data() + offset);
    }

    // Before and after; the pointers may be misaligned for more than bytes.
    uint8_t *image(size_t offset)
    {
        return image_.data() + offset;
    }
    const uint8_t *result(size_t offset) const
    {
        return result_.data() + offset;
    }
    template <typename T> T value(size_t offset) const
    {
        T value;
        std::memcpy(&value, result(offset), sizeof value);
        return value;
    }
    const std::vector<uint8_t> &result() const
    {
        return result_;
    }

    bool unchanged() const
    {
        return result_ == image_;
    }

    void check_others() const
    {
        for (size_t i = 0; i < image_.size(); i++)
            if (!outputs_[i]) {
                ASSERT_EQ(result_[i], image_[i]) << "byte " << i << " was overwritten";
            }
    }

  private:
    std::vector<uint8_t> image_, result_;
    std::vector<bool> outputs_;
    std::unique_ptr<device_memory> memory_;
};

// Element i of an array of any floating-point type, and the nearest value to `value` in its place.

inline double get_value(const uint8_t *array, int dtype, size_t i)
{
    uint16_t half;
    float single;
    double value;
    switch (dtype) {
    case BRG_FLOAT64:
        std::memcpy(&value, array + 8 * i, 8);
        return value;
    case BRG_FLOAT32:
        std::memcpy(&single, array + 4 * i, 4);
        return single;
    default:
        std::memcpy(&half, array + 2 * i, 2);
        return dtype == BRG_FLOAT16 ? brg_float_from_fp16(half) : brg_float_from_bf16(half);
    }
}

// To float32, rounded to odd: rounding that again, to 16 bits, gives the nearest value.
inline float round_to_odd(double value)
{
    float single = (float)value;
    if (!std::isfinite(value) || (double)single == value)
        return single;
    if (std::fabs((double)single) > std::fabs(value))
        single = std::nextafterf(single, 0);
    return brg_float_of_bits(brg_bits_of_float(single) | 1u);
}

inline void set_value(uint8_t *array, int dtype, size_t i, double value)
{
    float single = dtype == BRG_FLOAT32 ? (float)value : round_to_odd(value);
    uint16_t half =
        dtype == BRG_FLOAT16 ? brg_fp16_from_float(single) : brg_bf16_from_float(single);
    if (dtype == BRG_FLOAT64)
        std::memcpy(array + 8 * i, &value, 8);
    else if (dtype == BRG_FLOAT32)
        std::memcpy(array + 4 * i, &single, 4);
    else
        std::memcpy(array + 2 * i, &half, 2);
}

#endif
