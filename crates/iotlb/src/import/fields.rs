// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `key=value` texts, as tracepoints print them, and numbers in them.

use super::{Complaint, Fault};
use crate::parse::quoted;

/// Elements of an array in one event, at most. Kernels before the limit of 128 print
/// lists of any length.
pub(super) const MAX_ELEMENTS: usize = 1 << 16;

/// A piece of a line, with its byte offset in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub text: &'a str,
    pub at: usize,
}

impl<'a> Piece<'a> {
    /// What stands before and after the first `separator`.
    pub fn split_once(self, separator: char) -> Option<(Piece<'a>, Piece<'a>)> {
        let (left, right) = self.text.split_once(separator)?;
        let at = self.at + left.len() + separator.len_utf8();
        Some((
            Piece {
                text: left,
                at: self.at,
            },
            Piece { text: right, at },
        ))
    }

    /// Without white space at both ends.
    pub fn trim(self) -> Piece<'a> {
        let start = self.text.trim_start();
        Piece {
            text: start.trim_end(),
            at: self.at + self.text.len() - start.len(),
        }
    }

    pub fn strip_prefix(self, prefix: &str) -> Option<Piece<'a>> {
        let text = self.text.strip_prefix(prefix)?;
        Some(Piece {
            text,
            at: self.at + prefix.len(),
        })
    }

    pub fn complain(self, reason: Fault) -> Complaint {
        Complaint {
            offset: self.at,
            reason,
        }
    }

    fn bad_number(self) -> Complaint {
        self.complain(Fault::BadNumber(quoted(self.text)))
    }

    /// A number in hexadecimal digits, with or without `0x`.
    pub fn hexadecimal(self) -> Result<u64, Complaint> {
        let digits = self.text.strip_prefix("0x").unwrap_or(self.text);
        let valid = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let number = valid
            .then(|| u64::from_str_radix(digits, 16).ok())
            .flatten();
        number.ok_or_else(|| self.bad_number())
    }

    /// A number in decimal digits, or in hexadecimal ones after `0x`.
    pub fn number(self) -> Result<u64, Complaint> {
        if self.text.starts_with("0x") {
            return self.hexadecimal();
        }
        let valid = self.text.bytes().all(|b| b.is_ascii_digit());
        let number = valid.then(|| self.text.parse().ok()).flatten();
        number.ok_or_else(|| self.bad_number())
    }
}

/// How an event is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Print {
    /// By the kernel's own format: addresses hexadecimal without prefix.
    Kernel,
    /// By `perf`, which could not parse the kernel's format: all fields by their own
    /// names, arrays as bytes.
    Raw,
}

/// The fields of an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    text: Piece<'a>,
}

impl<'a> Fields<'a> {
    pub fn new(text: Piece<'a>) -> Self {
        Self { text }
    }

    /// The value of `key`: up to the next ` word=`, for values can hold spaces.
    pub fn optional(&self, key: &str) -> Option<Piece<'a>> {
        let mut from = 0;
        loop {
            let found = from + self.text.text[from..].find(key)?;
            let end = found + key.len();
            let starts = found == 0 || self.text.text.as_bytes()[found - 1] == b' ';
            if starts && self.text.text[end..].starts_with('=') {
                let value = &self.text.text[end + 1..];
                let piece = Piece {
                    text: &value[..value_end(value)],
                    at: self.text.at + end + 1,
                };
                return Some(piece.trim());
            }
            from = end;
        }
    }

    pub fn required(&self, key: &'static str) -> Result<Piece<'a>, Complaint> {
        self.optional(key).ok_or(Complaint {
            offset: self.text.at + self.text.text.len(),
            reason: Fault::MissingField(key),
        })
    }

    /// A list of numbers: `{0x1000,0x2000}` of the kernel, `4096 8192` of `perf`, or its
    /// `ARRAY[00, 10, ..]` of bytes, of `width` bytes an element.
    pub fn array(&self, key: &'static str, width: usize) -> Result<Vec<u64>, Complaint> {
        let value = self.required(key)?;
        let mut numbers = Vec::new();
        let mut push = |number| {
            if numbers.len() >= MAX_ELEMENTS {
                return Err(value.complain(Fault::TooManyElements(MAX_ELEMENTS)));
            }
            numbers.push(number);
            Ok(())
        };
        if let Some(bytes) = value.strip_prefix("ARRAY[") {
            let (mut element, mut count) = (0u64, 0);
            for byte in elements(bytes) {
                let wrong = || byte.complain(Fault::BadNumber(quoted(byte.text)));
                let low = u8::from_str_radix(byte.text, 16).map_err(|_| wrong())?;
                element |= u64::from(low) << (8 * count);
                count += 1;
                if count == width {
                    push(element)?;
                    (element, count) = (0, 0);
                }
            }
            if count != 0 {
                return Err(value.complain(Fault::PartialElement(width)));
            }
            return Ok(numbers);
        }
        for number in elements(value) {
            push(number.number()?)?;
        }
        Ok(numbers)
    }
}

/// Where a value ends: before ` word=`, or with the text.
fn value_end(text: &str) -> usize {
    let mut from = 0;
    while let Some(space) = text[from..].find(' ') {
        let after = &text[from + space + 1..];
        let word = after
            .bytes()
            .take_while(|b| b.is_ascii_lowercase() || *b == b'_')
            .count();
        if word > 0 && after[word..].starts_with('=') {
            return from + space;
        }
        from += space + 1;
    }
    text.len()
}

/// The numbers of a list, whatever stands around and between them.
fn elements(list: Piece<'_>) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = list;
    std::iter::from_fn(move || {
        let skip = |c: char| matches!(c, '{' | '}' | '[' | ']' | ',' | ' ');
        let start = rest.text.find(|c| !skip(c))?;
        let body = &rest.text[start..];
        let end = body.find(skip).unwrap_or(body.len());
        let found = Piece {
            text: &body[..end],
            at: rest.at + start,
        };
        rest = Piece {
            text: &body[end..],
            at: found.at + end,
        };
        Some(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields<'_> {
        Fields::new(Piece { text, at: 0 })
    }

    #[test]
    fn values_may_hold_spaces_and_keys_may_end_alike() {
        let fields = fields("ents=128/200 [TRUNCATED] dma_addrs=1 2 phys_addrs=3 attrs=");
        assert_eq!(fields.required("ents").unwrap().text, "128/200 [TRUNCATED]");
        assert_eq!(fields.array("phys_addrs", 8).unwrap(), [3]);
        assert_eq!(fields.array("dma_addrs", 8).unwrap(), [1, 2]);
        assert_eq!(fields.required("attrs").unwrap().text, "");
        assert!(fields.optional("addrs").is_none());
    }

    #[test]
    fn arrays_in_all_prints() {
        assert_eq!(
            fields("a={0x1000,0x20}").array("a", 8).unwrap(),
            [0x1000, 0x20]
        );
        assert_eq!(fields("a={}").array("a", 8).unwrap(), [0u64; 0]);
        let bytes = fields("a=ARRAY[00, 02, 00, 00, ff, 00, 00, 00] b=1");
        assert_eq!(bytes.array("a", 4).unwrap(), [512, 255]);
        assert_eq!(bytes.array("a", 8).unwrap(), [0xff_0000_0200]);
        let cut = fields("a=ARRAY[00, 02, 00]").array("a", 4).unwrap_err();
        assert_eq!(cut.reason, Fault::PartialElement(4));
        let bad = fields("k=7 a={0x1,zz}").array("a", 8).unwrap_err();
        assert_eq!(
            (bad.offset, bad.reason),
            (11, Fault::BadNumber("zz".into()))
        );
    }
}
