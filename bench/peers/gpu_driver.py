# SPDX-License-Identifier: BSD-3-Clause
"""The GPU through its driver's library alone, so that nothing has to be installed to time on it:
memory, copies, events. Everything is put on the default stream.

Run as a program it prints name, compute capability and driver of the first GPU, separated by tabs;
without one it says so, with exit status 77.
"""
import ctypes as c
import sys

DRIVER = "libcuda.so.1"
NO_GPU = 77 # exit status, as of a test that is skipped
MAJOR, MINOR = 75, 76 # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...


class NoDevice(Exception):
    """There is no GPU, or no driver for it."""


class Failed(Exception):
    """The driver answered with an error."""


class Memory:
    """Bytes of the device, given back with this object. What they hold lies at `at`."""
    def __init__(self, device, nbytes):
        at = c.c_uint64()
        device.call("cuMemAlloc_v2", c.byref(at), c.c_size_t(max(nbytes, 1)))
        self.device, self.at, self.nbytes = device, at.value, nbytes

    def __del__(self):
        if hasattr(self, "at"):
            self.device.driver.cuMemFree_v2(c.c_uint64(self.at))

    def write(self, data):
        """bytes, from the beginning on; they have arrived when this returns."""
        self.device.call("cuMemcpyHtoD_v2", c.c_uint64(self.at), data, c.c_size_t(len(data)))

    def read(self, offset=0, nbytes=None):
        """bytes, once all that was put on the stream before is done."""
        nbytes = self.nbytes - offset if nbytes is None else nbytes
        data = c.create_string_buffer(max(nbytes, 1))
        self.device.wait()
        self.device.call("cuMemcpyDtoH_v2", data, c.c_uint64(self.at + offset),
                         c.c_size_t(nbytes))
        return data.raw[:nbytes]

    def copy(self, source, nbytes, offset=0):
        """The first nbytes of other memory to here, in the order of the stream."""
        self.device.call("cuMemcpyDtoDAsync_v2", c.c_uint64(self.at + offset),
                         c.c_uint64(source.at), c.c_size_t(nbytes), None)

    def fill(self, piece):
        """A piece of the host's, repeated up to the end."""
        self.write(piece[:self.nbytes])
        done = min(len(piece), self.nbytes)
        while done < self.nbytes: # what is there is doubled
            more = min(done, self.nbytes - done)
            self.copy(self, more, done)
            done += more
        self.device.wait()

    def clear(self, word=0):
        self.device.call("cuMemsetD32Async", c.c_uint64(self.at), c.c_uint(word),
                         c.c_size_t(self.nbytes // 4), None)


class Event:
    def __init__(self, device):
        self.device, self.handle = device, c.c_void_p()
        device.call("cuEventCreate", c.byref(self.handle), 0)

    def record(self):
        self.device.call("cuEventRecord", self.handle, None)

    def since(self, start):
        """Milliseconds from `start`; waits for both."""
        milliseconds = c.c_float()
        self.device.call("cuEventSynchronize", self.handle)
        self.device.call("cuEventElapsedTime", c.byref(milliseconds), start.handle, self.handle)
        return milliseconds.value


class Device:
    """The first GPU, in the context that CUDA's runtime uses as well."""
    def __init__(self, driver=DRIVER):
        try:
            self.driver = c.CDLL(driver)
        except OSError:
            raise NoDevice(f"no driver: {driver} cannot be loaded") from None
        self.handle, context = c.c_int(), c.c_void_p()
        try:
            self.call("cuInit", 0)
            self.call("cuDeviceGet", c.byref(self.handle), 0)
        except Failed as error:
            raise NoDevice(str(error)) from None
        self.call("cuDevicePrimaryCtxRetain", c.byref(context), self.handle)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        status = getattr(self.driver, name)(*arguments)
        if status:
            raise Failed(f"{name}: {self.words(status)}")

    def words(self, status):
        text = c.c_char_p()
        self.driver.cuGetErrorString(status, c.byref(text))
        return text.value.decode() if text.value else f"error {status}"

    def wait(self):
        self.call("cuCtxSynchronize")

    def attribute(self, number):
        value = c.c_int()
        self.call("cuDeviceGetAttribute", c.byref(value), number, self.handle)
        return value.value

    @property
    def name(self):
        text = c.create_string_buffer(100)
        self.call("cuDeviceGetName", text, len(text), self.handle)
        return text.value.decode()

    @property
    def capability(self):
        return f"{self.attribute(MAJOR)}.{self.attribute(MINOR)}"

    @property
    def cuda(self):
        """The version of CUDA that the driver is for."""
        version = c.c_int()
        self.call("cuDriverGetVersion", c.byref(version))
        return f"{version.value // 1000}.{version.value // 10 % 100}"


def driver_version():
    """As the kernel's module has it; empty where it does not tell."""
    try:
        with open("/proc/driver/nvidia/version") as text:
            words = text.readline().split()
    except OSError:
        return ""
    return next((w for w in words if w.count(".") >= 1 and w[0].isdigit()), "")


def main():
    try:
        device = Device()
    except NoDevice as reason:
        print(f"no GPU: {reason}")
        sys.exit(NO_GPU)
    print(device.name, device.capability, driver_version() or f"for CUDA {device.cuda}", sep="\t")


if __name__ == "__main__":
    main()
