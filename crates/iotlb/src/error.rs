// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What can be wrong with a trace, and where.

use std::io;

/// A trace could not be read. Nothing of it is used then.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be opened.
    #[error("{file}: cannot open: {source}")]
    Open {
        /// Name as given by the user.
        file: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Reading failed in the middle.
    #[error("{file}:{line}: cannot read: {source}")]
    Read {
        /// Name as given by the user.
        file: String,
        /// The line that was being read, from 1.
        line: u64,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The compressed file ends early.
    #[error("{file}:{line}: compressed file is truncated: {detail}")]
    Truncated {
        /// Name as given by the user.
        file: String,
        /// The line that was being read, from 1.
        line: u64,
        /// What the decompressor lacked.
        detail: String,
    },
    /// The compressed file is damaged.
    #[error("{file}:{line}: compressed file is damaged: {detail}")]
    Damaged {
        /// Name as given by the user.
        file: String,
        /// The line that was being read, from 1.
        line: u64,
        /// What the decompressor found.
        detail: String,
    },
    /// The file is read several times, and did not stay the same.
    #[error("{file}: changed while it was read")]
    Changed {
        /// Name as given by the user.
        file: String,
    },
    /// The file has no bytes.
    #[error("{file}:1:1: file is empty, expected `# ioatlas-trace 2`")]
    Empty {
        /// Name as given by the user.
        file: String,
    },
    /// The file does not begin as a trace.
    #[error("{file}:1:1: not a trace: first line must be `# ioatlas-trace 2`")]
    MissingHeader {
        /// Name as given by the user.
        file: String,
    },
    /// A trace of another version of the format.
    #[error("{file}:1:17: trace format version `{version}` is not supported, only 1 and 2 are")]
    Version {
        /// Name as given by the user.
        file: String,
        /// What stands where the number should, shortened.
        version: String,
    },
    /// A line does not follow the grammar.
    #[error("{file}:{line}:{column}: {reason}")]
    Line {
        /// Name as given by the user.
        file: String,
        /// Its number, counted from 1.
        line: u64,
        /// In characters, from 1.
        column: usize,
        /// What is wrong there.
        reason: Reason,
    },
}

/// What is wrong at one place of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The line is empty.
    #[error("empty line")]
    EmptyLine,
    /// Neither `M`, `U`, `A` nor a comment.
    #[error("unknown event `{0}`, expected M, U, A or #")]
    UnknownEvent(String),
    /// The line ends before a required field.
    #[error("missing field: {0}")]
    MissingField(&'static str),
    /// Two spaces in a row, or a space at an end of the line.
    #[error("empty field, expected {0}")]
    EmptyField(&'static str),
    /// More fields than the event has.
    #[error("extra field `{0}`")]
    ExtraField(String),
    /// Not a page number.
    #[error("bad page number `{0}`, expected hexadecimal digits without prefix")]
    BadPage(String),
    /// The count is not a decimal number.
    #[error("bad page count `{0}`, expected decimal digits")]
    BadCount(String),
    /// A mapping of no pages.
    #[error("page count is 0")]
    ZeroCount,
    /// The page is at or above 2^52.
    #[error("page {0} is at or above 2^52")]
    PageTooHigh(String),
    /// The last page of the range is at or above 2^52.
    #[error("range of {pages} pages from page {first} reaches 2^52 or beyond")]
    RangeTooHigh {
        /// First page, in hexadecimal digits.
        first: String,
        /// Page count, in decimal digits.
        pages: String,
    },
    /// Neither `r`, `w` nor `rw`.
    #[error("unknown permission `{0}`, expected r, w or rw")]
    BadPermission(String),
    /// Neither `r`, `w` nor `?`.
    #[error("unknown direction `{0}`, expected r, w or ?")]
    BadDirection(String),
    /// Neither `alloc`, `page`, `sg` nor `-`.
    #[error("unknown kind `{0}`, expected alloc, page, sg or -")]
    BadKind(String),
    /// Not an offset and a number of bytes.
    #[error("bad bytes `{0}`, expected an offset and a count as in 64+1500")]
    BadExtent(String),
    /// The bytes do not begin in the first page of the map and end in the last.
    #[error("bytes {extent} do not begin and end in the first and the last of {pages} pages")]
    ExtentOutside {
        /// Offset and bytes, as they stand there.
        extent: String,
        /// How many pages are mapped.
        pages: u64,
    },
    /// Bytes that are not UTF-8.
    #[error("not UTF-8 text")]
    NotUtf8,
    /// The line is longer than allowed.
    #[error("line is longer than {0} bytes")]
    LineTooLong(usize),
    /// More events than allowed.
    #[error("more than {0} events")]
    TooManyEvents(usize),
    /// More devices than allowed.
    #[error("more than {0} devices")]
    TooManyDevices(usize),
    /// More marks than allowed.
    #[error("more than {0} marks")]
    TooManyMarks(usize),
    /// More text than allowed.
    #[error("more than {0} bytes of text")]
    TooMuchText(u64),
}
