// SPDX-License-Identifier: Apache-2.0
#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "atoll/pytorch/python/bindings/modules.h"

namespace atl::pytorch {
namespace {

// Detects changes of a dict's items or their order.
class WatchedDict {
 public:
  explicit WatchedDict(py::dict dict) : dict_(std::move(dict)) {
    for (const auto& [key, value] : dict_) {
      items_.emplace_back(py::reinterpret_borrow<py::object>(key), py::reinterpret_borrow<py::object>(value));
    }
  }
  bool is_same() const {
    if (PyDict_GET_SIZE(dict_.ptr()) != static_cast<Py_ssize_t>(items_.size())) return false;
    Py_ssize_t position = 0;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    for (const auto& [old_key, old_value] : items_) {
      if (PyDict_Next(dict_.ptr(), &position, &key, &value) == 0) return false;
      if (key != old_key.ptr() || value != old_value.ptr()) return false;
    }
    return true;
  }

 private:
  py::dict dict_;
  std::vector<std::pair<py::object, py::object>> items_;
};

// Detects changes of one entry of a dict, which may be absent.
class WatchedEntry {
 public:
  WatchedEntry(py::dict dict, py::str key) : dict_(std::move(dict)), key_(std::move(key)), value_(found()) {}
  bool is_same() const { return found().ptr() == value_.ptr(); }

 private:
  py::object found() const { return py::reinterpret_borrow<py::object>(PyDict_GetItem(dict_.ptr(), key_.ptr())); }

  py::dict dict_;
  py::str key_;
  py::object value_;
};

bool is_equal(PyObject* one, PyObject* other);

bool have_equal_items(PyObject* one, PyObject* other) {  // lists or tuples
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(one);
  if (PySequence_Fast_GET_SIZE(other) != size) return false;
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!is_equal(PySequence_Fast_GET_ITEM(one, i), PySequence_Fast_GET_ITEM(other, i))) return false;
  }
  return true;
}

bool have_equal_entries(PyObject* one, PyObject* other) {  // dicts, of which the order counts
  if (PyDict_GET_SIZE(one) != PyDict_GET_SIZE(other)) return false;
  Py_ssize_t place = 0;
  Py_ssize_t other_place = 0;
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  PyObject* other_key = nullptr;
  PyObject* other_value = nullptr;
  while (PyDict_Next(one, &place, &key, &value) != 0) {
    if (PyDict_Next(other, &other_place, &other_key, &other_value) == 0) return false;
    if (!is_equal(key, other_key) || !is_equal(value, other_value)) return false;
  }
  return true;
}

// Compares numbers and texts by type and value, lists, tuples and dicts by what they hold, and all else by identity. An
// `other` of Ellipsis equals everything.
bool is_equal(PyObject* one, PyObject* other) {
  if (one == other || other == Py_Ellipsis) return true;
  if (PyList_Check(one) && PyList_Check(other)) return have_equal_items(one, other);
  if (PyTuple_Check(one) && PyTuple_Check(other)) return have_equal_items(one, other);
  if (PyDict_Check(one) && PyDict_Check(other)) return have_equal_entries(one, other);
  if (Py_TYPE(one) != Py_TYPE(other)) return false;
  const bool is_plain = PyLong_CheckExact(one) || PyFloat_CheckExact(one) || PyUnicode_CheckExact(one);
  return is_plain && PyObject_RichCompareBool(one, other, Py_EQ) == 1;
}

// Detects another value of one entry of a dict, which may be absent. The lists and dicts in `value` must be copies of
// those in the entry.
class WatchedValue {
 public:
  WatchedValue(py::dict dict, py::str key, py::object value)
      : dict_(std::move(dict)), key_(std::move(key)), value_(std::move(value)), is_there_(found(dict_) != nullptr) {}
  bool is_same() const { return is_left_out_ || is_same_in(dict_); }
  // From now on it counts as the same if it has changed, or differs in `other`.
  void leave_out_if_changed(const py::dict* other) {
    if (!is_same_in(other != nullptr ? *other : dict_)) is_left_out_ = true;
  }

 private:
  bool is_same_in(const py::dict& dict) const {
    PyObject* now = found(dict);
    return now == nullptr ? !is_there_ : is_equal(now, value_.ptr());
  }
  PyObject* found(const py::dict& dict) const { return PyDict_GetItem(dict.ptr(), key_.ptr()); }

  py::dict dict_;
  py::str key_;
  py::object value_;
  bool is_there_;
  bool is_left_out_ = false;
};

// Elements from all parts of a tensor in host memory.
class Samples {
 public:
  explicit Samples(const at::Tensor& tensor) {
    if (!tensor.is_cpu() || tensor.numel() == 0 || !tensor.has_storage()) return;
    constexpr std::int64_t kMax = 128;
    bytes_ = tensor.element_size();
    const std::int64_t step = (tensor.numel() + kMax - 1) / kMax;
    for (std::int64_t i = 0; i < tensor.numel(); i += step) offsets_.push_back(offset_of(tensor, i));
    seen_ = read(tensor);
  }
  bool differ(const at::Tensor& tensor) const { return !offsets_.empty() && read(tensor) != seen_; }

 private:
  std::size_t offset_of(const at::Tensor& tensor, std::int64_t index) const {
    std::int64_t offset = 0;
    for (std::int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
      offset += index % tensor.size(dim) * tensor.stride(dim);
      index /= tensor.size(dim);
    }
    return static_cast<std::size_t>(offset) * bytes_;
  }
  std::vector<std::byte> read(const at::Tensor& tensor) const {
    const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
    std::vector<std::byte> values(offsets_.size() * bytes_);
    for (std::size_t i = 0; i < offsets_.size(); ++i) std::memcpy(&values[i * bytes_], data + offsets_[i], bytes_);
    return values;
  }

  std::size_t bytes_ = 0;  // of an element
  std::vector<std::size_t> offsets_;
  std::vector<std::byte> seen_;
};

// Detects changes of a tensor's memory, layout or version counter.
class WatchedTensor {
 public:
  explicit WatchedTensor(py::object object) : object_(std::move(object)), impl_(now()), version_(version_of(*impl_)) {
    if (!impl_->has_storage()) return;
    storage_ = impl_->storage().getWeakStorageImpl();
    data_ = impl_->storage().data();
    offset_ = impl_->storage_offset();
    sizes_ = impl_->sizes();
    strides_ = impl_->strides();
  }

  bool is_same() const {
    const c10::TensorImpl* impl = now();
    if (impl != impl_ || version_of(*impl) != version_) return false;
    if (!impl->has_storage()) return !storage_;
    // The weak reference keeps the storage's address from being used again.
    const c10::Storage& storage = impl->storage();
    return storage_ && storage.unsafeGetStorageImpl() == storage_->_unsafe_get_target() && storage.data() == data_ &&
           impl->storage_offset() == offset_ && impl->sizes() == sizes_ && impl->strides() == strides_;
  }
  const at::Tensor& tensor() const { return THPVariable_Unpack(object_.ptr()); }

 private:
  // Changes when torch.utils.swap_tensors has exchanged what the Python object holds.
  const c10::TensorImpl* now() const { return tensor().unsafeGetTensorImpl(); }
  static std::uint32_t version_of(const c10::TensorImpl& impl) {
    return impl.version_counter().enabled() ? impl.version_counter().current_version()
                                            : 0;  // inference tensors have none
  }

  py::object object_;
  const c10::TensorImpl* impl_;
  std::uint32_t version_;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  const void* data_ = nullptr;
  std::int64_t offset_ = 0;
  c10::DimVector sizes_;
  c10::DimVector strides_;
};

// Needs the GIL. Only `forget` may run Python code, because it may drop the last reference to an object.
class ModuleWatch {
 public:
  ModuleWatch(const std::vector<py::dict>& dicts, const std::vector<std::pair<py::dict, py::str>>& entries,
              const std::vector<std::tuple<py::dict, py::str, py::object>>& values,
              const std::vector<py::object>& tensors, std::size_t parameters, std::vector<py::dict> attributes)
      : attributes_(std::move(attributes)), parameters_(std::min(parameters, tensors.size())) {
    for (const py::dict& dict : dicts) dicts_.emplace_back(dict);
    for (const auto& [dict, key] : entries) entries_.emplace_back(dict, key);
    for (const auto& [dict, key, value] : values) values_.emplace_back(dict, key, value);
    for (const py::object& tensor : tensors) {
      if (!THPVariable_Check(tensor.ptr())) throw py::type_error("only tensors have a version");
      tensors_.emplace_back(tensor);
      samples_.emplace_back(tensors_.back().tensor());
    }
  }

  // Returns the index of the first that has changed: dicts, then entries, values and tensors.
  std::optional<std::size_t> changed() {
    std::size_t place = 0;
    const auto find_change = [&place](const auto& watched) {
      const auto changed = std::ranges::find_if_not(watched, [](const auto& each) { return each.is_same(); });
      place += static_cast<std::size_t>(changed - watched.begin());
      return changed != watched.end();
    };
    if (find_change(dicts_) || find_change(entries_) || find_change(values_)) return place;
    const std::size_t first_tensor = place;
    if (find_change(tensors_)) return place;
    if (!sampled_) {
      // One parameter and one other tensor at a time, in turn, so that a look costs microseconds however many there
      // are, and a change of all parameters is detected at once.
      look_at_one(next_parameter_, 0, parameters_);
      look_at_one(next_other_, parameters_, tensors_.size());
    }
    return sampled_ ? std::optional(first_tensor + *sampled_) : std::nullopt;
  }

  // Leaves out those of the first `count` values that have changed; or, with `others`, the corresponding dicts of
  // another module, that differ there.
  void leave_out(std::size_t count, const std::optional<std::vector<py::dict>>& others) {
    for (std::size_t i = 0; i < std::min(count, values_.size()); ++i) {
      values_[i].leave_out_if_changed(others ? &others->at(i) : nullptr);
    }
  }

  bool is_training() const {
    return std::any_of(attributes_.begin(), attributes_.end(), [this](const py::dict& attributes) {
      return PyDict_GetItem(attributes.ptr(), training_.ptr()) == Py_True;
    });
  }

  void forget() {
    const auto dicts = std::exchange(dicts_, {});
    const auto entries = std::exchange(entries_, {});
    const auto values = std::exchange(values_, {});
    const auto tensors = std::exchange(tensors_, {});
    parameters_ = 0;
    const auto attributes = std::exchange(attributes_, {});
  }

 private:
  void look_at_one(std::size_t& next, std::size_t begin, std::size_t end) {
    if (begin == end) return;
    if (next < begin || next >= end) next = begin;
    if (samples_[next].differ(tensors_[next].tensor())) sampled_ = next;
    ++next;
  }

  const py::str training_{"training"};
  std::vector<WatchedDict> dicts_;
  std::vector<WatchedEntry> entries_;
  std::vector<WatchedValue> values_;
  std::vector<WatchedTensor> tensors_;
  std::vector<Samples> samples_;  // one for each tensor
  std::vector<py::dict> attributes_;
  std::size_t parameters_;  // this many of the first tensors
  std::size_t next_parameter_ = 0;
  std::size_t next_other_ = 0;
  std::optional<std::size_t> sampled_;  // kept, because that tensor is sampled again much later
};

}  // namespace

void bind_watch(py::module_& module) {
  py::class_<ModuleWatch>(module, "ModuleWatch")
      .def(py::init<const std::vector<py::dict>&, const std::vector<std::pair<py::dict, py::str>>&,
                    const std::vector<std::tuple<py::dict, py::str, py::object>>&, const std::vector<py::object>&,
                    std::size_t, std::vector<py::dict>>(),
           py::arg("dicts"), py::arg("entries"), py::arg("values"), py::arg("tensors"), py::arg("parameters"),
           py::arg("attributes"))
      .def("changed", &ModuleWatch::changed)
      .def("leave_out", &ModuleWatch::leave_out, py::arg("count"), py::arg("others") = py::none())
      .def("is_training", &ModuleWatch::is_training)
      .def("forget", &ModuleWatch::forget);
}

}  // namespace atl::pytorch
