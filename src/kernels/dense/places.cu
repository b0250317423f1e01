#include "core/partition.h"
#include "kernels/dense/places.h"
#include "kernels/device/device.h"

namespace thinwire {
using namespace cuda;
namespace {

__global__ void __launch_bounds__(kThreads)
    gather_kernel(const float* __restrict__ gradient, const float* __restrict__ residual,
                  const std::uint32_t* __restrict__ places, std::size_t count, float* __restrict__ out) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    out[i] = sum_at(gradient, residual, places[i]);
  }
}

__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const std::uint32_t* __restrict__ places, const float* __restrict__ values,
                   std::size_t count, float* __restrict__ vector) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    vector[places[i]] = values == nullptr ? 0.0f : values[i];
  }
}

__global__ void __launch_bounds__(kThreads)
    hold_back_kernel(std::size_t count, float* __restrict__ gradient, float* __restrict__ residual) {
  for_each_element(
      count, [&](std::size_t i) { return residual != nullptr ? gradient[i] + residual[i] : 0.0f; },
      [&](std::size_t i, float sum) {
        gradient[i] = 0;
        if (residual != nullptr) residual[i] = sum;
      });
}

__global__ void __launch_bounds__(kThreads)
    add_residual_kernel(const float* __restrict__ gradient, const float* __restrict__ residual,
                        std::size_t count, float* __restrict__ sums) {
  for_each_element(
      count, [&](std::size_t i) { return sum_at(gradient, residual, i); },
      [&](std::size_t i, float sum) { sums[i] = sum; });
}

__global__ void __launch_bounds__(kThreads)
    clear_bits_kernel(const std::uint64_t* __restrict__ bits, std::size_t count, float* __restrict__ vector) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    if (bit_at(bits, i)) vector[i] = 0;
  }
}

__global__ void __launch_bounds__(kThreads) sample_kernel(const float* __restrict__ from, std::size_t range,
                                                          std::size_t count, float* __restrict__ out) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    out[i] = from[part_begin(range, count, i)];
  }
}

__global__ void __launch_bounds__(kThreads)
    momentum_kernel(float momentum, const float* __restrict__ velocity, std::size_t count,
                    float* __restrict__ gradient, float* __restrict__ corrected) {
#pragma unroll 4
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    const float value = momentum * velocity[i] + gradient[i];
    corrected[i] = value;
    gradient[i] = value;
  }
}

}  // namespace

void gather_places_on_cuda(Executor& executor, Span<const float> gradient, Span<const float> residual,
                           Span<const std::uint32_t> places, Span<float> out) {
  CudaExecutor& own = executor_on_device(executor);
  Operand g(own, gradient);
  Operand r(own, residual);
  Operand p(own, places);
  Operand o(own, out);
  launch(own.stream(), grid_for(places.size()), gather_kernel, g.data(), r.data(), p.data(), places.size(),
         o.data());
  finish(own, g, r, p, o);
}

void scatter_places_on_cuda(Executor& executor, Span<const std::uint32_t> places, Span<const float> values,
                            Span<float> vector) {
  CudaExecutor& own = executor_on_device(executor);
  Operand p(own, places);
  Operand v(own, values);
  Operand o(own, vector);
  launch(own.stream(), grid_for(places.size()), scatter_kernel, p.data(), v.data(), places.size(), o.data());
  finish(own, p, v, o);
}

void hold_back_on_cuda(Executor& executor, Span<float> gradient, Span<float> residual) {
  CudaExecutor& own = executor_on_device(executor);
  Operand g(own, gradient);
  Operand r(own, residual);
  launch(own.stream(), grid_for_elements(gradient.size()), hold_back_kernel, gradient.size(), g.data(),
         r.data());
  finish(own, g, r);
}

void add_residual_on_cuda(Executor& executor, Span<const float> gradient, Span<const float> residual,
                          Span<float> sums) {
  CudaExecutor& own = executor_on_device(executor);
  Operand g(own, gradient);
  Operand r(own, residual);
  Operand s(own, sums);
  launch(own.stream(), grid_for_elements(gradient.size()), add_residual_kernel, g.data(), r.data(),
         gradient.size(), s.data());
  finish(own, g, r, s);
}

void clear_bits_on_cuda(Executor& executor, Span<const std::uint64_t> bits, Span<float> vector) {
  CudaExecutor& own = executor_on_device(executor);
  Operand b(own, bits);
  Operand v(own, vector);
  launch(own.stream(), grid_for(vector.size()), clear_bits_kernel, b.data(), vector.size(), v.data());
  finish(own, b, v);
}

void sample_evenly_on_cuda(Executor& executor, Span<const float> vector, std::size_t first, std::size_t range,
                           Span<float> out) {
  CudaExecutor& own = executor_on_device(executor);
  Operand v(own, vector);
  Operand o(own, out);
  launch(own.stream(), grid_for(out.size()), sample_kernel, v.data() + first, range, out.size(), o.data());
  finish(own, v, o);
}

void correct_by_momentum_on_cuda(Executor& executor, float momentum, Span<const float> velocity,
                                 Span<float> gradient, Span<float> corrected) {
  CudaExecutor& own = executor_on_device(executor);
  Operand v(own, velocity);
  Operand g(own, gradient);
  Operand c(own, corrected);
  launch(own.stream(), grid_for(gradient.size()), momentum_kernel, momentum, v.data(), gradient.size(),
         g.data(), c.data());
  finish(own, v, g, c);
}

}  // namespace thinwire
