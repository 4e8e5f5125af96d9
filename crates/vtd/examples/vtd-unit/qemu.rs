// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A QEMU whose CPU never runs, asked over its standard input and output: one line a command, one
//! line an answer (qtest).

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// What to say where there is none.
pub const INSTALL: &str =
    "qemu-system-x86_64 is not installed (Debian: apt-get install qemu-system-x86)";

/// Where what firmware would read is put, in the guest's memory: a request, and the answer.
const REQUEST: u64 = 0x1000;
const ANSWER: u64 = 0x10_0000;
/// The register that takes the address of a request, high half first, big-endian.
const DMA_PORT: u16 = 0x514;
const FILE_LIST: u16 = 0x19;
const MAX_FILE_BYTES: u32 = 1 << 20;
const SELECT: u32 = 1 << 3;
const READ: u32 = 1 << 1;
const FAILED: u32 = 1;

/// It ends with this value.
pub struct Qemu {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Qemu {
    /// Starts a machine with `device`; none where QEMU is not installed.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start(device: &str) -> io::Result<Option<Self>> {
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-machine", "q35", "-accel", "tcg", "-S", "-m", "64M"]);
        command.args(["-display", "none", "-nodefaults", "-no-user-config"]);
        command.args(["-qtest", "stdio", "-qtest-log", "none", "-device", device]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = match child {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            child => child?,
        };
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let piped = || io::Error::other("no pipe to QEMU");
        Ok(Some(Qemu {
            child,
            to: to.ok_or_else(piped)?,
            from: BufReader::new(from.ok_or_else(piped)?),
        }))
    }

    /// One command; its answer without the `OK`.
    fn ask(&mut self, command: &str) -> io::Result<String> {
        writeln!(self.to, "{command}")?;
        let mut answer = String::new();
        loop {
            answer.clear();
            if self.from.read_line(&mut answer)? == 0 {
                return Err(io::Error::other(format!("QEMU ended at `{command}`")));
            }
            if !answer.starts_with("IRQ") {
                break;
            }
        }
        let answer = answer.trim_end();
        let refused = || io::Error::other(format!("QEMU answers `{answer}` to `{command}`"));
        Ok(answer
            .strip_prefix("OK")
            .ok_or_else(refused)?
            .trim_start()
            .to_string())
    }

    /// Reads 8 bytes of the physical address space.
    ///
    /// # Errors
    /// QEMU refused, or is gone.
    pub fn read64(&mut self, at: u64) -> io::Result<u64> {
        let answer = self.ask(&format!("readq {at:#x}"))?;
        let digits = answer.trim_start_matches("0x");
        u64::from_str_radix(digits, 16).map_err(io::Error::other)
    }

    fn read(&mut self, at: u64, bytes: u32) -> io::Result<Vec<u8>> {
        let answer = self.ask(&format!("read {at:#x} {bytes:#x}"))?;
        let digits = answer.trim_start_matches("0x").as_bytes();
        let byte = |pair: &[u8]| {
            let text = std::str::from_utf8(pair).map_err(io::Error::other)?;
            u8::from_str_radix(text, 16).map_err(io::Error::other)
        };
        digits.chunks(2).map(byte).collect()
    }

    /// What QEMU gives its firmware under `name`.
    ///
    /// # Errors
    /// There is no such file, or QEMU is gone.
    pub fn firmware_file(&mut self, name: &str) -> io::Result<Vec<u8>> {
        let head = self.firmware_bytes(FILE_LIST, 4)?;
        let files = big_endian(&head).min(1 << 10) as u32;
        // size, number, two reserved bytes, and a name of 56 bytes
        let list = self.firmware_bytes(FILE_LIST, 4 + 64 * files)?;
        let named = |entry: &&[u8]| entry[8..].split(|b| *b == 0).next() == Some(name.as_bytes());
        let missing = || io::Error::other(format!("QEMU has no firmware file {name}"));
        let entry = list[4..].chunks_exact(64).find(named).ok_or_else(missing)?;
        let (bytes, number) = (big_endian(&entry[..4]), big_endian(&entry[4..6]));
        self.firmware_bytes(number as u16, (bytes as u32).min(MAX_FILE_BYTES))
    }

    fn firmware_bytes(&mut self, number: u16, bytes: u32) -> io::Result<Vec<u8>> {
        let control = u32::from(number) << 16 | SELECT | READ;
        let request = format!("{control:08x}{bytes:08x}{ANSWER:016x}");
        self.ask(&format!("write {REQUEST:#x} 0x10 0x{request}"))?;
        self.ask(&format!("outl {DMA_PORT:#x} 0"))?;
        let low = (REQUEST as u32).swap_bytes();
        self.ask(&format!("outl {:#x} {low:#x}", DMA_PORT + 4))?;
        let status = big_endian(&self.read(REQUEST, 4)?);
        match status as u32 & FAILED {
            0 => self.read(ANSWER, bytes),
            _ => Err(io::Error::other(format!(
                "QEMU refuses firmware item {number:#x}"
            ))),
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn big_endian(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}
