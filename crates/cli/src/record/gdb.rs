// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Changing five bytes of a guest's kernel before it hands out its first IOVA, through QEMU's
//! debugger port.
//!
//! Linux keeps freed IOVA ranges in per-CPU caches (since 4.8): `free_iova_fast` puts a range
//! there, and the next allocation of that size takes it. Where `free_iova_fast` jumps to
//! `free_iova` at its first instruction (same first two arguments), the caches stay empty, and
//! every range comes from the tree, from the top down, as in 2010. No caller sees a difference but
//! in the addresses it gets.
//!
//! The protocol is GDB's remote serial one: `$command#checksum`, acknowledged by `+`.

use super::RecordError;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// A jump in place of a function's first instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Where the guest is stopped: by then its kernel is in place.
    pub stop_at: u64,
    /// The function that is no longer to run.
    pub from: u64,
    /// The one that runs instead.
    pub to: u64,
}

/// How long QEMU may take to reach the function, or to answer.
const PATIENCE: Duration = Duration::from_secs(60);

impl Patch {
    /// The jump: `e9` and the distance from its end, 32 bits.
    fn jump(self) -> Result<String, RecordError> {
        let distance = self
            .to
            .wrapping_sub(self.from.wrapping_add(5))
            .cast_signed();
        let distance = i32::try_from(distance)
            .map_err(|_| RecordError::Debugger(format!("no jump reaches {distance} bytes")))?;
        let bytes = distance.to_le_bytes();
        Ok(bytes
            .iter()
            .fold("e9".into(), |text, byte| format!("{text}{byte:02x}")))
    }

    /// Connects to the port at `socket`, where QEMU waits with the guest stopped; runs to the
    /// place, patches, lets the guest go.
    pub fn apply(self, socket: &Path) -> Result<(), RecordError> {
        let jump = self.jump()?;
        let mut port = Port::connect(socket)?;
        let (stop, from) = (self.stop_at, self.from);
        port.expect(&format!("Z1,{stop:x},1"), "OK")?;
        port.expect("c", "T")?;
        port.expect(&format!("M{from:x},5:{jump}"), "OK")?;
        // what the guest will run is what was written
        port.expect(&format!("m{from:x},5"), &jump)?;
        port.expect(&format!("z1,{stop:x},1"), "OK")?;
        port.expect("D", "OK")
    }
}

struct Port(UnixStream);

impl Port {
    fn connect(socket: &Path) -> Result<Self, RecordError> {
        let begun = Instant::now();
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                // QEMU has not made it yet
                Err(_) if begun.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(RecordError::Debugger(error.to_string())),
            }
        };
        stream
            .set_read_timeout(Some(PATIENCE))
            .map_err(|error| RecordError::Debugger(error.to_string()))?;
        Ok(Self(stream))
    }

    /// Sends a command; its answer must begin so.
    fn expect(&mut self, command: &str, wanted: &str) -> Result<(), RecordError> {
        let answer = self
            .exchange(command)
            .map_err(|error| RecordError::Debugger(format!("{command}: {error}")))?;
        if answer.starts_with(wanted) {
            return Ok(());
        }
        Err(RecordError::Debugger(format!(
            "{command}: answer `{answer}`, expected `{wanted}`"
        )))
    }

    fn exchange(&mut self, command: &str) -> std::io::Result<String> {
        let sum = command.bytes().fold(0u8, u8::wrapping_add);
        write!(self.0, "${command}#{sum:02x}")?;
        let mut byte = [0];
        loop {
            self.0.read_exact(&mut byte)?;
            if byte == *b"$" {
                break;
            }
        }
        let mut answer = String::new();
        loop {
            self.0.read_exact(&mut byte)?;
            if byte == *b"#" {
                break;
            }
            answer.push(byte[0].into());
        }
        self.0.read_exact(&mut [0; 2])?; // its checksum; the socket loses nothing
        self.0.write_all(b"+")?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    const PATCH: Patch = Patch {
        stop_at: 0xffff_ffff_816e_0000,
        from: 0xffff_ffff_816e_b2d0,
        to: 0xffff_ffff_816e_b180,
    };

    #[test]
    fn the_jump_is_relative_to_its_end() {
        // -0x150 - 5 = -0x155
        assert_eq!(PATCH.jump().unwrap(), "e9abfeffff");
        let far = Patch {
            to: PATCH.from - (1 << 32),
            ..PATCH
        };
        assert!(far.jump().is_err());
    }

    /// Plays QEMU: answers each command with the next of `answers`; returns what it was asked.
    fn play(answers: &'static [&'static str]) -> (Result<(), RecordError>, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("gdb");
        let listener = UnixListener::bind(&socket).unwrap();
        let qemu = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            for answer in answers {
                let (mut text, mut byte) = (String::new(), [0]);
                while stream.read(&mut byte).unwrap() == 1 {
                    text.push(byte[0].into());
                    if text.len() > 3 && text[..text.len() - 2].ends_with('#') {
                        break;
                    }
                }
                asked.push(text);
                let sum = answer.bytes().fold(0u8, u8::wrapping_add);
                write!(stream, "+${answer}#{sum:02x}").unwrap();
            }
            // the port stays open until the other side is done
            stream.read_to_end(&mut Vec::new()).unwrap();
            asked
        });
        let patched = PATCH.apply(&socket);
        (patched, qemu.join().unwrap())
    }

    #[test]
    fn the_guest_is_stopped_patched_and_let_go() {
        let (patched, asked) = play(&["OK", "T05thread:01;", "OK", "e9abfeffff", "OK", "OK"]);
        patched.unwrap();
        assert_eq!(asked[0], "$Z1,ffffffff816e0000,1#08");
        assert_eq!(asked[1], "+$c#63");
        assert!(
            asked[2].starts_with("+$Mffffffff816eb2d0,5:e9abfeffff#"),
            "{asked:?}"
        );
        assert!(asked[5].starts_with("+$D#"), "{asked:?}");
    }

    #[test]
    fn an_answer_that_is_none_is_an_error() {
        let (patched, _) = play(&["OK", "T05", "OK", "0f1f440000"]);
        let error = patched.unwrap_err().to_string();
        assert!(
            error.contains("answer `0f1f440000`, expected `e9abfeffff`"),
            "{error}"
        );
        let (patched, _) = play(&["E01"]);
        assert!(patched.is_err());
    }
}
