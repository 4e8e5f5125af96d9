// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What wrappers around a platform leave to it.

/// Everything of `Platform` but the frame allocator, by the field `inner` of type `P`.
macro_rules! forward_to_inner {
    () => {
        type A64 = P::A64;
        type Lock<T: Send> = P::Lock<T>;
        fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
            self.inner.pinned(f)
        }
        fn cpus(&self) -> usize {
            self.inner.cpus()
        }
        fn entries<'f>(&'f self, by: Authority, frame: FrameRef<'f>) -> &'f [P::A64] {
            self.inner.entries(by, frame)
        }
        fn publish(&self, entries: &[P::A64]) {
            self.inner.publish(entries);
        }
        fn fence(&self, order: Ordering) {
            self.inner.fence(order);
        }
        fn relax(&self) {
            self.inner.relax();
        }
        fn heap(&self) -> Option<&dyn Heap> {
            self.inner.heap()
        }
        fn unique(&self) -> u64 {
            self.inner.unique()
        }
    };
}
pub(super) use forward_to_inner;

/// Everything of `CopyMemory`, by the same field.
macro_rules! forward_copies_to_inner {
    () => {
        fn is_memory(&self, range: PhysRange) -> bool {
            self.inner.is_memory(range)
        }
        fn copy(&self, by: Authority, from: PhysRange, to: PhysAddr) -> Result<(), NotMemoryError> {
            self.inner.copy(by, from, to)
        }
        fn zero(&self, by: Authority, range: PhysRange) -> Result<(), NotMemoryError> {
            self.inner.zero(by, range)
        }
        fn take(&self, by: Authority, from: PhysRange, to: PhysAddr) -> Result<(), NotMemoryError> {
            self.inner.take(by, from, to)
        }
        fn read(
            &self,
            by: Authority,
            from: PhysAddr,
            into: &mut [u8],
        ) -> Result<(), NotMemoryError> {
            self.inner.read(by, from, into)
        }
        fn write(&self, by: Authority, from: &[u8], to: PhysAddr) -> Result<(), NotMemoryError> {
            self.inner.write(by, from, to)
        }
    };
}
pub(super) use forward_copies_to_inner;
