// SPDX-License-Identifier: Apache-2.0
// Tensors of torch on the fake device (tests/fake_cuda): torch's build for CPUs knows "privateuseone" as a
// place for devices of others. Storage is memory of the fake, which the host cannot touch; every operation is
// done on the CPU, on copies, late, in the default stream's order.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/resize_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/library.h>

namespace
{

constexpr auto kind = c10::DeviceType::PrivateUse1;

template <class F>
F find(const char *name)
{
    static void *driver = dlopen(std::getenv("PARTIALCOLL_CUDA_LIBRARY"), RTLD_NOW);
    TORCH_CHECK(driver, "PARTIALCOLL_CUDA_LIBRARY: there is no fake");
    auto f = reinterpret_cast<F>(dlsym(driver, name));
    TORCH_CHECK(f, name);
    return f;
}

struct Current {
    Current()
    {
        static auto retain = find<int (*)(void **, int)>("cuDevicePrimaryCtxRetain");
        static void *context = nullptr;
        if (!context)
            retain(&context, 0);
        static auto push = find<int (*)(void *)>("cuCtxPushCurrent_v2");
        push(context);
    }
    ~Current()
    {
        void *own;
        static auto pop = find<int (*)(void **)>("cuCtxPopCurrent_v2");
        pop(&own);
    }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override
    {
        return kind;
    }
    c10::Device exchangeDevice(c10::Device) const override
    {
        return {kind, 0};
    }
    c10::Device getDevice() const override
    {
        return {kind, 0};
    }
    void setDevice(c10::Device) const override
    {
    }
    void uncheckedSetDevice(c10::Device) const noexcept override
    {
    }
    c10::Stream getStream(c10::Device) const override
    {
        return c10::Stream(c10::Stream::DEFAULT, c10::Device(kind, 0));
    }
    c10::Stream getDefaultStream(c10::Device) const override
    {
        return c10::Stream(c10::Stream::DEFAULT, c10::Device(kind, 0));
    }
    c10::Stream exchangeStream(c10::Stream) const override
    {
        return c10::Stream(c10::Stream::DEFAULT, c10::Device(kind, 0));
    }
    c10::DeviceIndex deviceCount() const noexcept override
    {
        return 1;
    }
    void record(void **, const c10::Stream &, const c10::DeviceIndex,
                const c10::EventFlag) const override
    {
    }
    void block(void *, const c10::Stream &) const override
    {
    }
    bool queryEvent(void *) const override
    {
        return true;
    }
    void destroyEvent(void *, const c10::DeviceIndex) const noexcept override
    {
    }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
    bool hasPrimaryContext(c10::DeviceIndex) const override
    {
        return true;
    }
    bool isAvailable() const override
    {
        return true;
    }
};
Hooks hooks;
const bool registered = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

void release(void *memory)
{
    static auto give = find<int (*)(uint64_t)>("cuMemFree_v2");
    static auto synchronize = find<int (*)(uint64_t)>("cuStreamSynchronize");
    if (!memory)
        return;
    Current current;
    synchronize(0);
    give(reinterpret_cast<uint64_t>(memory));
}

struct Memory final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override
    {
        static auto take = find<int (*)(uint64_t *, size_t)>("cuMemAlloc_v2");
        uint64_t address = 0;
        Current current;
        if (bytes)
            TORCH_CHECK(take(&address, bytes) == 0, "no memory");
        auto memory = reinterpret_cast<void *>(address);
        return {memory, memory, &release, {kind, 0}};
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return &release;
    }
    void copy_data(void *, const void *, std::size_t) const override
    {
        TORCH_CHECK(false);
    }
};
Memory memory;
REGISTER_ALLOCATOR(kind, &memory);

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout>, std::optional<c10::Device>,
                 std::optional<bool>, std::optional<c10::MemoryFormat> format)
{
    return at::detail::empty_generic(size, &memory,
                                     c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device>,
                         std::optional<bool>)
{
    return at::detail::empty_strided_generic(
        size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        c10::dtype_or_default(dtype));
}

// Of a tensor, the bytes of its storage from its first element on.
size_t extent(const at::Tensor &t)
{
    return t.numel() ? t.storage().nbytes() - t.storage_offset() * t.itemsize() : 0;
}

at::Tensor to_host(const at::Tensor &t)
{
    static auto read =
        find<int (*)(uint64_t, uint64_t, void *, size_t, unsigned)>("fake_cuda_read");
    static auto synchronize = find<int (*)(uint64_t)>("cuStreamSynchronize");
    auto flat = at::empty({static_cast<int64_t>(extent(t))}, at::dtype(at::kByte));
    Current current;
    if (extent(t)) {
        TORCH_CHECK(!read(0, reinterpret_cast<uint64_t>(t.const_data_ptr()),
                          flat.mutable_data_ptr(), extent(t), 0));
        synchronize(0);
    }
    auto out = at::empty({0}, t.options().device(at::kCPU));
    out.set_(flat.storage(), 0, t.sizes(), t.strides());
    return out;
}

at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool)
{
    static auto write =
        find<int (*)(uint64_t, uint64_t, const void *, size_t, unsigned)>(
            "fake_cuda_write");
    auto source = from.device().type() == kind ? to_host(from) : from;
    if (to.device().type() != kind) {
        to.copy_(source);
        return to;
    }
    auto there = to_host(to); // with what lies between its elements
    there.copy_(source);
    Current current;
    if (extent(to))
        TORCH_CHECK(!write(0, reinterpret_cast<uint64_t>(to.mutable_data_ptr()),
                           there.const_data_ptr(), extent(to), 300));
    return to;
}

at::Tensor copy_from_and_resize(const at::Tensor &from, const at::Tensor &to)
{
    to.resize_(from.sizes());
    return copy_from(from, to, false);
}

at::Scalar scalar(const at::Tensor &t)
{
    return to_host(t).item();
}

at::Tensor &set_storage(at::Tensor &result, at::Storage storage, int64_t offset,
                        c10::IntArrayRef size, c10::IntArrayRef stride)
{
    result.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
    result.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
    return result;
}

void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
    at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
    m.impl("empty.memory_format", &empty);
    m.impl("empty_strided", &empty_strided);
    m.impl("as_strided", at::native::as_strided_tensorimpl);
    m.impl("view", at::native::view);
    m.impl("_reshape_alias", at::native::_reshape_alias);
    m.impl("resize_", at::native::resize_);
    m.impl("_copy_from", &copy_from);
    m.impl("_copy_from_and_resize", &copy_from_and_resize);
    m.impl("_local_scalar_dense", &scalar);
    m.impl("set_.source_Storage_storage_offset", &set_storage);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m)
{
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

} // namespace
