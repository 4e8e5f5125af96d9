// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The processor's surroundings: ports, registers in memory, interrupts, the serial line, and the
//! way out.

use crate::{completion::complete, platform::Masked};
use core::fmt::{self, Write};
use core::{arch::asm, panic::PanicInfo};
use ioatlas_dma::platform::Lock;
use ioatlas_vtd::registers::{Reg32, Reg64, Registers};

/// The first serial line, as firmware leaves it.
const SERIAL: u16 = 0x3f8;
/// QEMU's `isa-debug-exit`, as boot.sh places it: QEMU's exit status is 2 * value + 1.
const EXIT: u16 = 0xf4;
/// Exit value where all went well.
pub const GOOD: u8 = 0x10;
/// Exit value where something did not.
pub const BAD: u8 = 0x11;
/// Interrupts enabled, in the flags register.
const INTERRUPTS: u64 = 1 << 9;

/// Vectors that have a stub in boot.s. Those below [`TIMER`] are exceptions.
const VECTORS: usize = 34;
/// Vector of the CPU's own timer.
pub const TIMER: u64 = 32;
/// Vector of the device's messages.
pub const DEVICE: u64 = 33;
/// Bytes of a stub.
const STUB: usize = 16;
/// A present gate to our one code segment that masks interrupts.
const GATE: u64 = 0x8e00 << 32 | 8 << 16;

/// The local APIC of this CPU.
// SAFETY: every x86 CPU of 64 bits has it there, and nothing else uses it.
const APIC: Block = unsafe { Block::new(0xfee0_0000) };
const END_OF_INTERRUPT: Reg32 = Reg32(0xb0);
const SPURIOUS_VECTOR: Reg32 = Reg32(0xf0);
const TIMER_VECTOR: Reg32 = Reg32(0x320);
const TIMER_COUNT: Reg32 = Reg32(0x380);
const TIMER_LEFT: Reg32 = Reg32(0x390);
const TIMER_DIVIDE: Reg32 = Reg32(0x3e0);

/// Writes a byte to a port.
pub fn outb(port: u16, value: u8) {
    // SAFETY: the devices behind the ports of this kernel touch no memory.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) };
}

/// Runs `f` with interrupts masked on this CPU, and leaves them as they were. May be nested.
pub fn without_interrupts<R>(f: impl FnOnce() -> R) -> R {
    let flags: u64;
    // SAFETY: pushes and pops one word. Not `nomem`: no access moves out of the masked part.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    let result = f();
    if flags & INTERRUPTS != 0 {
        // SAFETY: they were enabled.
        unsafe { asm!("sti", options(nostack)) };
    }
    result
}

/// Sleeps until `done`. Whatever makes it true must interrupt.
pub fn sleep_until(done: impl Fn() -> bool) {
    while without_interrupts(|| {
        let asleep = !done();
        if asleep {
            // SAFETY: handlers are in place. `sti` takes effect one instruction late, so an
            // interrupt since the check ends `hlt`.
            unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
        }
        asleep
    }) {}
}

/// A register block in memory: of the unit, of a device, of the processor.
pub struct Block(u64);

impl Block {
    /// The block at `base`.
    ///
    /// # Safety
    /// It is one, mapped uncached, and nothing else writes there.
    pub const unsafe fn new(base: u64) -> Self {
        Block(base)
    }
}

// SAFETY: `new` was promised a register block, which nothing else uses.
unsafe impl Registers for Block {
    fn read32(&self, register: Reg32) -> u32 {
        // SAFETY: `new` was promised a register block.
        unsafe { ((self.0 + u64::from(register.0)) as *const u32).read_volatile() }
    }
    fn read64(&self, register: Reg64) -> u64 {
        // SAFETY: as in `read32`.
        unsafe { ((self.0 + u64::from(register.0)) as *const u64).read_volatile() }
    }
    fn write32(&self, register: Reg32, value: u32) {
        // SAFETY: as in `read32`. Assembly, since the compiler could move other stores past a
        // volatile one; the processor does not.
        unsafe { asm!("mov [{}], {:e}", in(reg) self.0 + u64::from(register.0), in(reg) value) };
    }
    fn write64(&self, register: Reg64, value: u64) {
        // SAFETY: as in `write32`.
        unsafe { asm!("mov [{}], {}", in(reg) self.0 + u64::from(register.0), in(reg) value) };
    }
}

/// The interrupt descriptor table, two words a gate.
static TABLE: Masked<[[u64; 2]; VECTORS]> = Masked::new([[0; 2]; VECTORS]);

/// What a stub leaves on the stack: nine registers, the vector, the error code,
/// and where it happened.
type Frame = [u64; 12];
/// The vector's place in that.
const VECTOR: usize = 9;

/// Fills the table, silences the old interrupt controllers, and enables interrupts.
pub fn enable_interrupts() {
    unsafe extern "C" {
        static stubs: [[u8; STUB]; VECTORS];
    }
    let operand = TABLE.with(|table| {
        for (vector, gate) in table.iter_mut().enumerate() {
            let at = &raw const stubs as u64 + (vector * STUB) as u64;
            *gate = [at & 0xffff | GATE | (at & 0xffff_0000) << 32, at >> 32];
        }
        // its last 10 bytes: the offset of the table's last byte, and its address
        [(size_of_val(table) as u64 - 1) << 48, table.as_ptr() as u64]
    });
    // SAFETY: the table is static, and each gate leads to a stub.
    unsafe { asm!("lidt [{} + 6]", in(reg) &operand, options(nostack)) };
    outb(0x21, 0xff);
    outb(0xa1, 0xff);
    APIC.write32(SPURIOUS_VECTOR, 0x1ff); // and on
    APIC.write32(TIMER_VECTOR, TIMER as u32); // one shot
    APIC.write32(TIMER_DIVIDE, 0b1011); // by 1
    // SAFETY: every handler is in place.
    unsafe { asm!("sti", options(nostack)) };
}

/// Has the timer interrupt once, in so many ticks (of a nanosecond, in QEMU).
pub fn interrupt_in(ticks: u32) {
    APIC.write32(TIMER_COUNT, ticks);
}

/// Sleeps for so many ticks.
pub fn sleep(ticks: u32) {
    interrupt_in(ticks);
    sleep_until(|| APIC.read32(TIMER_LEFT) == 0);
}

/// Every interrupt and exception comes here, with interrupts masked.
#[unsafe(no_mangle)]
extern "C" fn interrupt(frame: &Frame) {
    let vector = frame[VECTOR];
    assert!(vector >= TIMER, "exception: {:#x?}", &frame[VECTOR..]);
    complete(vector);
    APIC.write32(END_OF_INTERRUPT, 0);
}

/// The first serial line, of which only the transmitter is used.
struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| outb(SERIAL, byte)); // real ones must be waited for
        Ok(())
    }
}

/// Prints a line on the serial line.
pub fn print(line: fmt::Arguments<'_>) {
    let _ = writeln!(Serial, "{line}"); // it never fails
}
macro_rules! println {
    ($($arg:tt)*) => { $crate::machine::print(format_args!($($arg)*)) };
}
pub(crate) use println;

/// Ends the machine: with [`GOOD`] or [`BAD`].
pub fn exit(status: u8) -> ! {
    outb(EXIT, status);
    loop {
        core::hint::spin_loop(); // there is no such device
    }
}

#[panic_handler]
fn panic(why: &PanicInfo<'_>) -> ! {
    println!("{why}");
    exit(BAD)
}
