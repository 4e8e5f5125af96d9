// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The grammar of one event line: pure functions from text to [`Line`].
//!
//! ```text
//! M <device> <iova_page> <pages> <r|w|rw> [<phys_page> [<kind> [<offset>+<bytes>]]]
//! U <device> <iova_page> <pages>
//! A <device> <iova_page> <r|w|?>
//! ```
//!
//! Fields are separated by exactly one space. Page numbers are hexadecimal
//! digits, counts decimal digits, neither with sign or prefix. `-` stands for a
//! physical page only where a kind follows it, and for a kind that is not known. The offset is that
//! of the first byte in the first page.

use crate::error::Reason;
use crate::event::{DeviceId, Direction, Event, Kind, Permission};
use crate::units::{Extent, IovaPage, PAGE_LIMIT, PageCount, PageRange, PhysPage};

/// How much of an offending field an error message repeats, in characters.
const QUOTED_CHARS: usize = 24;

/// One line, its device not yet resolved to an index.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub device: &'a str,
    pub body: Body,
}

/// What the line says about its device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Map {
        range: PageRange,
        permission: Permission,
        phys: Option<PhysPage>,
        kind: Option<Kind>,
        extent: Option<Extent>,
    },
    Unmap {
        range: PageRange,
    },
    Access {
        page: IovaPage,
        direction: Option<Direction>,
    },
}

impl Body {
    /// The event, of `device`.
    pub fn event(self, device: DeviceId) -> Event {
        match self {
            Body::Map {
                range,
                permission,
                phys,
                kind,
                extent,
            } => Event::Map {
                device,
                range,
                permission,
                phys,
                kind,
                extent,
            },
            Body::Unmap { range } => Event::Unmap { device, range },
            Body::Access { page, direction } => Event::Access {
                device,
                page,
                direction,
            },
        }
    }
}

/// A complaint and the byte offset in the line that it is about.
pub(crate) type Complaint = (usize, Reason);

/// Parses an event line (no comment, no line end).
pub(crate) fn line(text: &str) -> Result<Line<'_>, Complaint> {
    if text.is_empty() {
        return Err((0, Reason::EmptyLine));
    }
    let mut fields = Fields {
        text,
        next: Some(0),
    };
    let event = fields.required("event letter")?;
    match event.text {
        "M" | "U" | "A" => {}
        other => return Err((event.at, Reason::UnknownEvent(quoted(other)))),
    }
    let device = fields.required("device")?.text;
    let page_field = fields.required("IOVA page")?;
    let page = iova_page(page_field)?;
    let body = match event.text {
        "M" => {
            let range = range(page_field, page, fields.required("page count")?)?;
            let permission = permission(fields.required("permission")?)?;
            let (phys, kind) = phys_and_kind(&mut fields)?;
            // a field behind the kind: where there is no kind, there is none
            let extent = match fields.optional("offset and bytes")? {
                Some(field) => Some(extent(range.pages(), field)?),
                None => None,
            };
            Body::Map {
                range,
                permission,
                phys,
                kind,
                extent,
            }
        }
        "U" => Body::Unmap {
            range: range(page_field, page, fields.required("page count")?)?,
        },
        _ => Body::Access {
            page,
            direction: direction(fields.required("direction")?)?,
        },
    };
    match fields.optional("nothing more")? {
        None => Ok(Line { device, body }),
        Some(extra) => Err((extra.at, Reason::ExtraField(quoted(extra.text)))),
    }
}

/// A field and its byte offset in the line.
#[derive(Clone, Copy)]
struct Field<'a> {
    text: &'a str,
    at: usize,
}

/// Splits a line at single spaces; `next` is the offset of the next field.
struct Fields<'a> {
    text: &'a str,
    next: Option<usize>,
}

impl<'a> Fields<'a> {
    fn optional(&mut self, what: &'static str) -> Result<Option<Field<'a>>, Complaint> {
        let Some(at) = self.next else { return Ok(None) };
        let rest = &self.text[at..];
        let text = match rest.find(' ') {
            Some(length) => {
                self.next = Some(at + length + 1);
                &rest[..length]
            }
            None => {
                self.next = None;
                rest
            }
        };
        if text.is_empty() {
            return Err((at, Reason::EmptyField(what)));
        }
        Ok(Some(Field { text, at }))
    }

    fn required(&mut self, what: &'static str) -> Result<Field<'a>, Complaint> {
        let end = self.text.len();
        self.optional(what)?
            .ok_or((end, Reason::MissingField(what)))
    }
}

fn iova_page(field: Field<'_>) -> Result<IovaPage, Complaint> {
    let number = hexadecimal(field)?;
    IovaPage::new(number).ok_or_else(|| (field.at, Reason::PageTooHigh(quoted(field.text))))
}

fn range(first: Field<'_>, page: IovaPage, count: Field<'_>) -> Result<PageRange, Complaint> {
    if !count.text.bytes().all(|b| b.is_ascii_digit()) {
        return Err((count.at, Reason::BadCount(quoted(count.text))));
    }
    // All digits: the only failure left is a count beyond 64 bits, too high as well.
    let pages = count.text.parse().unwrap_or(u64::MAX);
    if pages == 0 {
        return Err((count.at, Reason::ZeroCount));
    }
    PageRange::new(page, PageCount(pages)).ok_or_else(|| {
        let reason = Reason::RangeTooHigh {
            first: quoted(first.text),
            pages: quoted(count.text),
        };
        (count.at, reason)
    })
}

fn permission(field: Field<'_>) -> Result<Permission, Complaint> {
    match field.text {
        "r" => Ok(Permission::Read),
        "w" => Ok(Permission::Write),
        "rw" => Ok(Permission::ReadWrite),
        other => Err((field.at, Reason::BadPermission(quoted(other)))),
    }
}

fn direction(field: Field<'_>) -> Result<Option<Direction>, Complaint> {
    match field.text {
        "r" => Ok(Some(Direction::Read)),
        "w" => Ok(Some(Direction::Write)),
        "?" => Ok(None),
        other => Err((field.at, Reason::BadDirection(quoted(other)))),
    }
}

fn phys_and_kind(fields: &mut Fields<'_>) -> Result<(Option<PhysPage>, Option<Kind>), Complaint> {
    let Some(field) = fields.optional("physical page")? else {
        return Ok((None, None));
    };
    if field.text == "-" {
        let kind = kind(fields.required("kind")?)?;
        return Ok((None, kind));
    }
    let number = hexadecimal(field)?;
    let phys =
        PhysPage::new(number).ok_or_else(|| (field.at, Reason::PageTooHigh(quoted(field.text))))?;
    let kind = match fields.optional("kind")? {
        Some(field) => kind(field)?,
        None => None,
    };
    Ok((Some(phys), kind))
}

fn kind(field: Field<'_>) -> Result<Option<Kind>, Complaint> {
    match field.text {
        "alloc" => Ok(Some(Kind::Alloc)),
        "page" => Ok(Some(Kind::Page)),
        "sg" => Ok(Some(Kind::ScatterGather)),
        "-" => Ok(None),
        other => Err((field.at, Reason::BadKind(quoted(other)))),
    }
}

fn extent(pages: PageCount, field: Field<'_>) -> Result<Extent, Complaint> {
    let bad = || (field.at, Reason::BadExtent(quoted(field.text)));
    let (offset, bytes) = field.text.split_once('+').ok_or_else(bad)?;
    let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse().map_err(|_| bad()),
        false => Err(bad()),
    };
    let (offset, bytes) = (number(offset)?, number(bytes)?);
    Extent::new(pages, offset, bytes).ok_or_else(|| {
        let reason = Reason::ExtentOutside {
            extent: quoted(field.text),
            pages: pages.0,
        };
        (field.at, reason)
    })
}

/// The number, or `PAGE_LIMIT` for any that needs more than 64 bits.
fn hexadecimal(field: Field<'_>) -> Result<u64, Complaint> {
    // `from_str_radix` alone would accept a sign.
    if !field.text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err((field.at, Reason::BadPage(quoted(field.text))));
    }
    Ok(u64::from_str_radix(field.text, 16).unwrap_or(PAGE_LIMIT))
}

/// The field as an error message may show it: short, no control characters.
pub(crate) fn quoted(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(QUOTED_CHARS)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(QUOTED_CHARS).is_some() {
        shown.push_str("...");
    }
    shown
}

/// Whose line it is, as far as the fast path looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsualDevice<'a> {
    /// The one that was handed in.
    Latest,
    Other(&'a str),
}

/// A line of the usual form.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Usual<'a> {
    pub device: UsualDevice<'a>,
    pub body: Body,
}

/// The fast path: the first line of `text` and its length without its end, if it is whole,
/// an event, all ASCII, and plainly right; else `None`, and [`line()`] knows more.
#[inline]
pub(crate) fn usual<'a>(text: &'a [u8], latest: &str) -> Option<(Usual<'a>, usize)> {
    let &[letter, b' ', ref rest @ ..] = text else {
        return None;
    };
    let named_latest = rest.strip_prefix(latest.as_bytes());
    let (device, rest) = match named_latest {
        Some(after @ [b' ', ..]) if !latest.is_empty() => (UsualDevice::Latest, after),
        _ => {
            let end = rest.iter().position(|byte| !byte.is_ascii_graphic())?;
            let (name, after) = rest.split_at_checked(end)?;
            if name.is_empty() {
                return None;
            }
            (UsualDevice::Other(std::str::from_utf8(name).ok()?), after)
        }
    };
    let (number, rest) = usual_page(rest.strip_prefix(b" ")?)?;
    let page = IovaPage::new(number)?;
    let (body, rest) = match letter {
        b'A' => {
            let &[b' ', direction, ref rest @ ..] = rest else {
                return None;
            };
            let direction = match direction {
                b'r' => Some(Direction::Read),
                b'w' => Some(Direction::Write),
                b'?' => None,
                _ => return None,
            };
            (Body::Access { page, direction }, rest)
        }
        b'U' => {
            let (range, rest) = usual_range(page, rest)?;
            (Body::Unmap { range }, rest)
        }
        b'M' => usual_map(page, rest)?,
        _ => return None,
    };
    match rest {
        [b'\n', ..] => Some((Usual { device, body }, text.len() - rest.len())),
        _ => None,
    }
}

#[inline]
fn usual_map(page: IovaPage, rest: &[u8]) -> Option<(Body, &[u8])> {
    let (range, rest) = usual_range(page, rest)?;
    let rest = rest.strip_prefix(b" ")?;
    let (permission, rest) = match rest {
        [b'r', b'w', rest @ ..] => (Permission::ReadWrite, rest),
        [b'r', rest @ ..] => (Permission::Read, rest),
        [b'w', rest @ ..] => (Permission::Write, rest),
        _ => return None,
    };
    let (mut phys, mut kind, mut rest) = (None, None, rest);
    if let Some(after) = rest.strip_prefix(b" ") {
        if after.starts_with(b"- ") {
            rest = &after[1..];
        } else {
            let (number, after) = usual_page(after)?;
            (phys, rest) = (Some(PhysPage::new(number)?), after);
        }
        if let Some(after) = rest.strip_prefix(b" ") {
            for (name, known) in [
                (&b"page"[..], Kind::Page),
                (b"sg", Kind::ScatterGather),
                (b"alloc", Kind::Alloc),
            ] {
                if let Some(after) = after.strip_prefix(name) {
                    (kind, rest) = (Some(known), after);
                }
            }
            kind?;
        }
    }
    let mut extent = None;
    if let (Some(_), Some(after)) = (kind, rest.strip_prefix(b" ")) {
        let (offset, after) = usual_count(after)?;
        let (bytes, after) = usual_count(after.strip_prefix(b"+")?)?;
        (extent, rest) = (Some(Extent::new(range.pages(), offset, bytes)?), after);
    }
    let body = Body::Map {
        range,
        permission,
        phys,
        kind,
        extent,
    };
    Some((body, rest))
}

/// Hexadecimal digits, few enough to stay below 2^52.
#[inline]
fn usual_page(text: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (at, &byte) in text.iter().enumerate() {
        let digit = DIGITS[usize::from(byte)];
        if digit == NO_DIGIT {
            return (1..=13).contains(&at).then_some((number, &text[at..]));
        }
        number = number << 4 | u64::from(digit);
    }
    None
}

const NO_DIGIT: u8 = 0xff;

/// Values of hexadecimal digits, by character.
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        digits[b"0123456789abcdef"[value] as usize] = value as u8;
        digits[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    digits
};

/// A space and a count.
#[inline]
fn usual_range(page: IovaPage, text: &[u8]) -> Option<(PageRange, &[u8])> {
    let (count, rest) = usual_count(text.strip_prefix(b" ")?)?;
    Some((PageRange::new(page, PageCount(count))?, rest))
}

/// Decimal digits, at most 16, and something behind them.
#[inline]
fn usual_count(text: &[u8]) -> Option<(u64, &[u8])> {
    let mut count = 0u64;
    for (at, &byte) in text.iter().enumerate() {
        if byte.is_ascii_digit() && at < 16 {
            count = count * 10 + u64::from(byte - b'0');
        } else {
            return (at > 0).then_some((count, &text[at..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> Complaint {
        line(text).expect_err(text)
    }

    #[test]
    fn map_line_with_all_fields() {
        let parsed = line("M 00:04.0 fffff 2 rw 626f alloc").unwrap();
        assert_eq!(parsed.device, "00:04.0");
        let range = PageRange::new(IovaPage::new(0xfffff).unwrap(), PageCount(2)).unwrap();
        let (permission, phys) = (Permission::ReadWrite, PhysPage::new(0x626f));
        assert_eq!(
            parsed.body,
            Body::Map {
                range,
                permission,
                phys,
                kind: Some(Kind::Alloc),
                extent: None,
            }
        );
    }

    #[test]
    fn extents_begin_in_the_first_page_and_end_in_the_last() {
        for (text, offset, bytes) in [
            ("M d 1 1 r 7 page 0+1", 0, 1),
            ("M d 1 1 r 7 - 4095+1", 4095, 1),
            ("M d 1 1 r - - 0+4096", 0, 4096),
            ("M d 1 2 r - sg 4095+2", 4095, 2),
            ("M d 1 2 w 7 alloc 0+8192", 0, 8192),
            (
                "M d 0 4503599627370496 r - - 1+18446744073709551615",
                1,
                u64::MAX,
            ),
        ] {
            let body = line(text).expect(text).body;
            let Body::Map {
                range,
                extent: Some(extent),
                ..
            } = body
            else {
                panic!("{text}: {body:?}")
            };
            let found = (extent.offset(), extent.bytes(range.pages()));
            assert_eq!(found, (offset, bytes), "{text}");
        }
        for bad in [
            "1",
            "+1",
            "1+",
            "-1+1",
            "1+0x1",
            "a+1",
            "1+1+1",
            "99999999999999999999+1",
        ] {
            let text = format!("M d 1 1 r 7 page {bad}");
            assert_eq!(
                complaint(&text),
                (17, Reason::BadExtent(bad.into())),
                "{text}"
            );
        }
        for bad in [
            "0+0",
            "4096+1",
            "0+4097",
            "4095+2",
            "0+18446744073709551615",
        ] {
            let text = format!("M d 1 1 r 7 page {bad}");
            let (at, reason) = complaint(&text);
            assert_eq!(at, 17, "{text}");
            assert!(
                matches!(reason, Reason::ExtentOutside { pages: 1, .. }),
                "{text}"
            );
        }
        let short = complaint("M d 1 2 r 7 page 0+4096");
        assert!(matches!(short.1, Reason::ExtentOutside { pages: 2, .. }));
        assert_eq!(
            complaint("M d 1 1 r 7 sg 0+1 1"),
            (19, Reason::ExtraField("1".into()))
        );
    }

    #[test]
    fn optional_fields_of_a_map_line() {
        for (text, phys, kind) in [
            ("M d 1 1 r", None, None),
            ("M d 1 1 r 7", PhysPage::new(7), None),
            ("M d 1 1 r 7 -", PhysPage::new(7), None),
            ("M d 1 1 r - sg", None, Some(Kind::ScatterGather)),
            ("M d 1 1 r - -", None, None),
        ] {
            match line(text).unwrap().body {
                Body::Map {
                    phys: p, kind: k, ..
                } => assert_eq!((p, k), (phys, kind), "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        assert_eq!(complaint("M d 1 1 r -"), (11, Reason::MissingField("kind")));
    }

    #[test]
    fn complaints_name_the_offset_of_the_field() {
        assert_eq!(complaint(""), (0, Reason::EmptyLine));
        assert_eq!(complaint("X d 1"), (0, Reason::UnknownEvent("X".into())));
        assert_eq!(
            complaint("m d 1 1 r"),
            (0, Reason::UnknownEvent("m".into()))
        );
        assert_eq!(complaint("U d 1"), (5, Reason::MissingField("page count")));
        assert_eq!(complaint("U  1 1"), (2, Reason::EmptyField("device")));
        assert_eq!(
            complaint("U d 1 1 "),
            (8, Reason::EmptyField("nothing more"))
        );
        assert_eq!(complaint("U d 1 1 r"), (8, Reason::ExtraField("r".into())));
        assert_eq!(complaint("U d 0x1 1"), (4, Reason::BadPage("0x1".into())));
        assert_eq!(complaint("U d +1 1"), (4, Reason::BadPage("+1".into())));
        assert_eq!(complaint("U d 1 -1"), (6, Reason::BadCount("-1".into())));
        assert_eq!(complaint("U d 1 a"), (6, Reason::BadCount("a".into())));
        assert_eq!(complaint("U d 1 0"), (6, Reason::ZeroCount));
        assert_eq!(
            complaint("M d 1 1 x"),
            (8, Reason::BadPermission("x".into()))
        );
        assert_eq!(
            complaint("M d 1 1 r 1 dma"),
            (12, Reason::BadKind("dma".into()))
        );
        assert_eq!(
            complaint("A d 1 rw"),
            (6, Reason::BadDirection("rw".into()))
        );
        assert_eq!(complaint("A d 1\tr"), (4, Reason::BadPage("1\\tr".into())));
    }

    #[test]
    fn pages_end_below_two_to_the_52() {
        assert!(line("A d fffffffffffff r").is_ok());
        assert_eq!(
            complaint("A d 10000000000000 r"),
            (4, Reason::PageTooHigh("10000000000000".into()))
        );
        assert!(line("U d fffffffffffff 1").is_ok());
        assert!(line("U d 0 4503599627370496").is_ok());
        for text in ["U d fffffffffffff 2", "U d 0 4503599627370497"] {
            assert!(
                matches!(complaint(text), (_, Reason::RangeTooHigh { .. })),
                "{text}"
            );
        }
        let beyond_64_bits = "U d 1 99999999999999999999999";
        assert!(matches!(
            complaint(beyond_64_bits),
            (6, Reason::RangeTooHigh { .. })
        ));
        let beyond_64_bits = "A d 123456789012345678901 r";
        assert!(matches!(
            complaint(beyond_64_bits),
            (4, Reason::PageTooHigh(_))
        ));
        assert!(matches!(
            complaint("M d 1 1 r 10000000000000"),
            (10, Reason::PageTooHigh(_))
        ));
    }

    #[test]
    fn quotes_are_short_and_printable() {
        let long = "x".repeat(1000);
        assert_eq!(quoted(&long).len(), QUOTED_CHARS + 3);
        assert!(!quoted("\u{1b}[2J").contains('\u{1b}'));
    }

    #[test]
    fn the_short_way_reads_what_the_long_way_reads() {
        let usual_lines = [
            "A 00:04.0 fffff r",
            "A d 0 w",
            "A d ABCDEF0123456 ?",
            "U d 0 4503599627370496",
            "U e fffffffffffff 1",
            "M d 1 2 r",
            "M d 1 2 w 7",
            "M d 1 2 rw ffe page",
            "M d 1 2 rw ffe sg",
            "M d 1 2 rw ffe alloc",
            "M d 1 2 w - sg",
            "M d 1 2 w - sg 5+8187",
            "M d 1 1 r 7 page 4095+1",
            "M d 1 1 rw ffe alloc 0+4096",
        ];
        for text in usual_lines {
            let long = line(text).unwrap();
            let ended = format!("{text}\nA d 1 r\n");
            let (short, length) = usual(ended.as_bytes(), "d").expect(text);
            assert_eq!((short.body, length), (long.body, text.len()), "{text}");
            let device = match short.device {
                UsualDevice::Latest => "d",
                UsualDevice::Other(name) => name,
            };
            assert_eq!(device, long.device);
            assert_eq!(usual(text.as_bytes(), "d"), None, "no end");
        }
    }

    #[test]
    fn the_short_way_leaves_every_complaint_to_the_long_one() {
        for text in [
            "",
            "#",
            "A",
            "A ",
            "A d",
            "A d ",
            "A d 1",
            "A d 1 ",
            "A d 1 x",
            "A d 1 r ",
            "A d 1 rw",
            "A  1 r",
            "A d  1 r",
            "A d +1 r",
            "A d 0x1 r",
            "A d 10000000000000 r",
            "B d 1 r",
            "A d\t1 r",
            "A d 1 r\r",
            "U d 1",
            "U d 1 0",
            "U d 1 -1",
            "U d 1 1 1",
            "U d 1 99999999999999999",
            "U d fffffffffffff 2",
            "M d 1 1",
            "M d 1 1 x",
            "M d 1 1 rr",
            "M d 1 1 wr",
            "M d 1 1 r x",
            "M d 1 1 r 10000000000000",
            "M d 1 1 r 1 dma",
            "M d 1 1 r 1 pages",
            "M d 1 1 r 1 ",
            "M d 1 1 r -",
            "M d 1 1 r - ",
            "M d 1 1 r - 1",
            "M d 1 1 r -sg",
            "M d 1 1 r 1 sg 1",
            "M d 1 1 r 1 sg 1+",
            "M d 1 1 r 1 sg +1",
            "M d 1 1 r 1 sg 1+4096",
            "M d 1 1 r 1 sg 0+1 ",
            "M d 1 1 r 1 sg 0+1+1",
            "M d 1 1 r 0+1",
        ] {
            let ended = format!("{text}\n");
            assert_eq!(usual(ended.as_bytes(), "d"), None, "{text}");
        }
    }
}
