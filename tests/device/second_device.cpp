// A device beside the CPU, as torch asks of a backend: its tensors lie in ordinary memory and its operations are the
// CPU's, but, as on a GPU, an operation on tensors of both is an error.

#include <cstring>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
const c10::Device kDevice(kType, 0);

struct Allocator final : public at::Allocator {
  static void free(void* data) { c10::free_cpu(data); }
  at::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : c10::alloc_cpu(bytes);
    return {data, data, &free, kDevice};
  }
  at::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};
Allocator allocator;
REGISTER_ALLOCATOR(kType, &allocator);

struct Hooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
};
Hooks hooks;
const bool has_hooks = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

// There is one device with one stream, on which everything is done at once.
struct Guard final : public c10::impl::DeviceGuardImplInterface {
  c10::Stream stream() const { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

using Sizes = c10::SymIntArrayRef;
using Asked = std::optional<at::ScalarType>;

at::Tensor empty(
    Sizes sizes, Asked dtype, std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(sizes), &allocator, kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    Sizes sizes, Sizes strides, Asked dtype, std::optional<at::Layout>, std::optional<at::Device>,
    std::optional<bool>) {
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), &allocator, kKeys,
      c10::dtype_or_default(dtype));
}

at::Tensor on_cpu(const at::Tensor& x) {
  return x.is_cpu() ? x : at::from_blob(x.data_ptr(), x.sizes(), x.strides(), x.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

const at::Tensor& resize(const at::Tensor& x, Sizes asked, std::optional<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(asked);
  const size_t bytes = c10::multiply_integers(sizes) * x.itemsize();
  auto* storage = x.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl();
  if (storage->nbytes() < bytes) {
    auto data = allocator.allocate(bytes);
    if (storage->nbytes() > 0) std::memcpy(data.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(data));
    storage->set_nbytes(bytes);
  }
  x.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return x;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Tensor as_strided(const at::Tensor& x, Sizes sizes, Sizes strides, std::optional<c10::SymInt> offset) {
  std::optional<int64_t> begin;
  if (offset) begin = offset->guard_int(__FILE__, __LINE__);
  return at::native::as_strided_tensorimpl(
      x, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), begin);
}

at::Tensor view(const at::Tensor& x, Sizes sizes) { return at::native::view(x, C10_AS_INTARRAYREF_SLOW(sizes)); }

at::Tensor reshape_alias(const at::Tensor& x, Sizes sizes, Sizes strides) {
  return at::native::_reshape_alias(x, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides));
}

// Of the ways to compute scaled_dot_product_attention: by its formula.
int64_t formula(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
    std::optional<double>, bool) {
  return 0;
}

// Whatever has no function here: as the CPU does it, if all tensors are on this device, or numbers.
void on_one_device(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  for (const auto& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
    std::vector<at::Tensor> tensors;
    if (argument.isTensor()) tensors.push_back(argument.toTensor());
    if (argument.isTensorList()) tensors = argument.toTensorVector();
    for (const auto& x : tensors) {
      TORCH_CHECK(
          !x.defined() || !x.is_cpu() || x.dim() == 0, "Expected all tensors to be on the same device, but ",
          op.schema().name(), " was given one of ", x.sizes(), " on the CPU");
    }
  }
  at::native::cpu_fallback(op, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_one_device>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("resize_", &resize);
  m.impl("_fused_sdp_choice", &formula);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using namespace at::autocast;
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(scaled_dot_product_attention, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(softmax, int, fp32)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
}
