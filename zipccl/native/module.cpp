// The Python module zipccl._native. All arguments are integers: addresses, counts and codes, checked by
// zipccl/codec/native.py. The interpreter's lock is released while the codec works.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cfenv>

#include "codec.hpp"

namespace {

using zipccl::Implementation;

constexpr Py_ssize_t MAX_ARGUMENTS = 8;

// The integer arguments of a call; ok is false, and a Python error set, if they are not as many integers as wanted.
struct Arguments {
    bool ok;
    unsigned long long value[MAX_ARGUMENTS] = {};

    Arguments(PyObject* const* arguments, Py_ssize_t count, Py_ssize_t wanted) : ok(count == wanted) {
        if (!ok) PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", wanted, count);
        for (Py_ssize_t i = 0; ok && i < wanted; ++i) {
            value[i] = PyLong_AsUnsignedLongLong(arguments[i]);
            ok = !(value[i] == static_cast<unsigned long long>(-1) && PyErr_Occurred());
        }
    }

    const Implementation& implementation() const { return *zipccl::implementations()[value[0]]; }
    int number(int i) const { return static_cast<int>(value[i]); }
    int dtype() const { return number(1); }
    const uint8_t* source(int i) const { return reinterpret_cast<const uint8_t*>(value[i]); }
    uint8_t* target(int i) const { return reinterpret_cast<uint8_t*>(value[i]); }
};

// The default floating-point environment while it lives: results must not depend on whether the thread flushes
// subnormal numbers to zero, or on how it rounds.
struct DefaultFloatingPoint {
    std::fenv_t callers;
    DefaultFloatingPoint() {
        std::fegetenv(&callers);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultFloatingPoint() { std::fesetenv(&callers); }
};

PyObject* implementations(PyObject*, PyObject*) {
    PyObject* list = PyList_New(0);
    for (auto each = zipccl::implementations(); list && *each; ++each) {
        PyObject* item = Py_BuildValue("(sN)", (*each)->name, PyBool_FromLong((*each)->supported()));
        if (!item || PyList_Append(list, item)) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

PyObject* encode_body(PyObject*, PyObject* const* objects, Py_ssize_t count) {
    const Arguments a(objects, count, 6);
    if (!a.ok) return nullptr;
    size_t nbytes;
    Py_BEGIN_ALLOW_THREADS
    nbytes = a.implementation().encode_body(a.dtype(), a.source(2), a.value[3], a.target(4), a.number(5));
    Py_END_ALLOW_THREADS
    return PyLong_FromSize_t(nbytes);
}

PyObject* decode_body(PyObject*, PyObject* const* objects, Py_ssize_t count) {
    const Arguments a(objects, count, 7);
    if (!a.ok) return nullptr;
    zipccl::Status status;
    Py_BEGIN_ALLOW_THREADS
    status = a.implementation().decode_body(a.dtype(), a.source(2), a.value[3], a.target(4), a.value[5], a.number(6));
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(status);
}

PyObject* decode_reduce(PyObject*, PyObject* const* objects, Py_ssize_t count) {
    const Arguments a(objects, count, 8);
    if (!a.ok) return nullptr;
    zipccl::Status status;
    Py_BEGIN_ALLOW_THREADS
    const DefaultFloatingPoint environment;
    status = a.implementation().decode_reduce(a.dtype(), a.number(2), a.source(3), a.value[4], a.target(5), a.value[6],
                                              a.number(7));
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(status);
}

PyObject* pack_encode(PyObject*, PyObject* const* objects, Py_ssize_t count) {
    const Arguments a(objects, count, 8);
    if (!a.ok) return nullptr;
    size_t nbytes;
    Py_BEGIN_ALLOW_THREADS
    const DefaultFloatingPoint environment;
    nbytes = a.implementation().pack_encode(a.dtype(), a.source(2), a.value[3], a.value[4], a.target(5), a.target(6),
                                            a.number(7));
    Py_END_ALLOW_THREADS
    return PyLong_FromSize_t(nbytes);
}

PyObject* widen(PyObject*, PyObject* const* objects, Py_ssize_t count) {
    const Arguments a(objects, count, 5);
    if (!a.ok) return nullptr;
    Py_BEGIN_ALLOW_THREADS
    const DefaultFloatingPoint environment;
    a.implementation().widen(a.dtype(), a.source(2), a.target(3), a.value[4]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject* accumulate(PyObject*, PyObject* const* objects, Py_ssize_t count) {
    const Arguments a(objects, count, 6);
    if (!a.ok) return nullptr;
    Py_BEGIN_ALLOW_THREADS
    const DefaultFloatingPoint environment;
    a.implementation().accumulate(a.dtype(), a.number(2), a.source(3), a.target(4), a.value[5]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject* pack(PyObject*, PyObject* const* objects, Py_ssize_t count) {
    const Arguments a(objects, count, 6);
    if (!a.ok) return nullptr;
    Py_BEGIN_ALLOW_THREADS
    const DefaultFloatingPoint environment;
    a.implementation().pack(a.dtype(), a.source(2), a.target(3), a.value[4], a.value[5]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyCFunction fast(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"implementations", implementations, METH_NOARGS, "implementations() -> list of (name, supported), best first"},
    {"encode_body", fast(encode_body), METH_FASTCALL,
     "encode_body(implementation, dtype, source, count, body, threads) -> size"},
    {"decode_body", fast(decode_body), METH_FASTCALL,
     "decode_body(implementation, dtype, body, nbytes, target, count, threads) -> status"},
    {"decode_reduce", fast(decode_reduce), METH_FASTCALL,
     "decode_reduce(implementation, dtype, op, body, nbytes, accumulator, count, threads) -> status"},
    {"pack_encode", fast(pack_encode), METH_FASTCALL,
     "pack_encode(implementation, dtype, accumulator, count, divisor, target, body, threads) -> size"},
    {"widen", fast(widen), METH_FASTCALL, "widen(implementation, dtype, source, accumulator, count)"},
    {"accumulate", fast(accumulate), METH_FASTCALL,
     "accumulate(implementation, dtype, op, source, accumulator, count)"},
    {"pack", fast(pack), METH_FASTCALL, "pack(implementation, dtype, accumulator, target, count, divisor)"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "The native codec; see zipccl.codec.native.", 0, methods,
    nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }
