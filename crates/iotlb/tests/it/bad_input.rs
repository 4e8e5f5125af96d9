// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Hostile and damaged files: a typed error that names the place, and bounded memory.

use flate2::{Compression, write::GzEncoder};
use ioatlas_iotlb::{Limits, Reason, Trace, TraceError};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

const TEXT: &str = "# ioatlas-trace 1\n# mark 1\nM d 1 2 rw\nA d 2 ?\nU d 1 2\n";

fn read(name: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
    Trace::read(name, bytes, Limits::default())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

fn bundled_zstd() -> Vec<u8> {
    let path = "../../traces/lsi-bonnie.trace.zst";
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn plain_gzip_and_zstd_are_the_same_trace() {
    let plain = read("t", TEXT.as_bytes()).unwrap();
    assert_eq!(plain.events().len(), 3);
    assert_eq!(plain.marks()[0].label, "1");
    for bytes in [gzip(TEXT.as_bytes()), zstd(TEXT.as_bytes())] {
        assert_eq!(read("t", &bytes).unwrap(), plain);
    }
    // Several frames in a row are one file.
    let (head, tail) = TEXT.split_at(20);
    for pack in [gzip, zstd] {
        let bytes = [pack(head.as_bytes()), pack(tail.as_bytes())].concat();
        assert_eq!(read("t", &bytes).unwrap(), plain);
    }
    // A skippable frame says nothing.
    let skippable = [
        &[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..],
        &zstd(TEXT.as_bytes()),
    ];
    assert_eq!(
        read("t.zst", &skippable.concat()).unwrap().events(),
        plain.events()
    );
}

#[test]
fn every_truncation_of_a_compressed_file_is_noticed() {
    for (name, whole) in [
        ("t.gz", gzip(TEXT.as_bytes())),
        ("t.zst", zstd(TEXT.as_bytes())),
    ] {
        for length in 1..whole.len() {
            let error = read(name, &whole[..length]).expect_err("truncated");
            assert!(
                matches!(error, TraceError::Truncated { .. }),
                "{length}: {error}"
            );
            assert!(error.to_string().starts_with(name), "{error}");
        }
    }
    let whole = bundled_zstd();
    for length in (1..whole.len()).step_by(997) {
        let error = read("lsi.zst", &whole[..length]).expect_err("truncated");
        let ending = " of the file (or the file is damaged)";
        assert!(error.to_string().ends_with(ending), "{error}");
        assert!(
            matches!(error, TraceError::Truncated { .. }),
            "{length}: {error}"
        );
    }
}

#[test]
fn damage_is_noticed() {
    let mut gz = gzip(TEXT.as_bytes());
    let checksum = gz.len() - 6;
    gz[checksum] ^= 1;
    assert!(matches!(read("t.gz", &gz), Err(TraceError::Damaged { .. })));
    let mut zst = bundled_zstd();
    let last = zst.len() - 1;
    zst[last] ^= 1; // part of the frame's checksum
    let error = read("lsi.zst", &zst).expect_err("damaged");
    assert!(!error.to_string().contains(['{', '(']), "{error}");
    assert!(matches!(error, TraceError::Damaged { .. }), "{error}");
    assert!(matches!(
        read("t.zst", b"no zstd at all"),
        Err(TraceError::Damaged { .. })
    ));
}

#[test]
fn files_that_are_no_traces() {
    assert!(matches!(read("t", b""), Err(TraceError::Empty { .. })));
    assert!(matches!(
        read("t.gz", &gzip(b"")),
        Err(TraceError::Empty { .. })
    ));
    assert!(matches!(
        read("t.zst", &zstd(b"")),
        Err(TraceError::Empty { .. })
    ));
    for text in [
        "M d 1 1 r\n",
        "\n",
        "# ioatlas-trace\n",
        "# ioatlas",
        "\u{feff}# ioatlas-trace 1",
    ] {
        let error = read("t", text.as_bytes()).expect_err(text);
        assert!(
            matches!(error, TraceError::MissingHeader { .. }),
            "{text}: {error}"
        );
    }
    for version in ["0", "3", "10", "1\r", "2\r", "1 ", "2 "] {
        let error =
            read("t", format!("# ioatlas-trace {version}\n").as_bytes()).expect_err(version);
        assert!(matches!(error, TraceError::Version { .. }), "{error}");
    }
    for header in ["# ioatlas-trace 1", "# ioatlas-trace 2"] {
        assert_eq!(read("t", header.as_bytes()).unwrap().events().len(), 0);
    }
    let missing = Trace::open(Path::new("no/such/file.trace")).expect_err("missing");
    assert!(
        missing
            .to_string()
            .starts_with("no/such/file.trace: cannot open"),
        "{missing}"
    );
    let directory = Trace::open(Path::new(env!("CARGO_MANIFEST_DIR"))).expect_err("directory");
    assert!(
        directory.to_string().contains(env!("CARGO_MANIFEST_DIR")),
        "{directory}"
    );
}

#[test]
fn errors_name_file_line_and_column() {
    let error = |lines: &str| read("t.trace", format!("# ioatlas-trace 1\n{lines}").as_bytes());
    for (lines, shown) in [
        (
            "A d 1 r\nX d 1\n",
            "t.trace:3:1: unknown event `X`, expected M, U, A or #",
        ),
        ("A d 1 r\n\n", "t.trace:3:1: empty line"),
        ("# x\nA d 1\n", "t.trace:3:6: missing field: direction"),
        (
            "A gerät zz r\n",
            "t.trace:2:9: bad page number `zz`, expected hexadecimal digits without prefix",
        ),
        ("U d 1 0", "t.trace:2:7: page count is 0"),
        (
            "A d 1 r\r\n",
            "t.trace:2:7: unknown direction `r\\r`, expected r, w or ?",
        ),
        (
            "A d 10000000000000 r\n",
            "t.trace:2:5: page 10000000000000 is at or above 2^52",
        ),
    ] {
        assert_eq!(error(lines).expect_err(lines).to_string(), shown);
    }
    let not_utf8 = b"# ioatlas-trace 1\nA \xc3\xa4\xff 1 r\n";
    let error = read("t", not_utf8).expect_err("not UTF-8");
    assert_eq!(error.to_string(), "t:2:4: not UTF-8 text");
}

#[test]
fn limits_hold() {
    let limits = Limits {
        line_bytes: 20,
        events: 2,
        devices: 1,
        marks: 1,
        stamps: 0,
        text_bytes: 200,
    };
    let reason = |lines: &str| {
        let text = format!("# ioatlas-trace 1\n{lines}");
        match Trace::read("t", text.as_bytes(), limits) {
            Err(TraceError::Line { reason, .. }) => Some(reason),
            Ok(_) => None,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(reason("# 345678901234567890\n"), None);
    assert_eq!(
        reason("# 3456789012345678901\n"),
        Some(Reason::LineTooLong(20))
    );
    assert_eq!(reason("A d 1 r\nA d 1 r\n"), None);
    assert_eq!(
        reason("A d 1 r\nA d 1 r\nA d 1 r\n"),
        Some(Reason::TooManyEvents(2))
    );
    assert_eq!(
        reason("A d 1 r\nA e 1 r\n"),
        Some(Reason::TooManyDevices(1))
    );
    assert_eq!(
        reason("# mark 1\n# mark 2\n"),
        Some(Reason::TooManyMarks(1))
    );
    assert_eq!(reason(&"#\n".repeat(101)), Some(Reason::TooMuchText(200)));
}

/// Gives zeros for ever; panics if more is read than a bounded line needs.
struct EndlessLine(usize);

impl Read for EndlessLine {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0 = self
            .0
            .checked_sub(buf.len())
            .expect("read on beyond the line limit");
        buf.fill(b'0');
        Ok(buf.len())
    }
}

#[test]
fn an_endless_line_is_not_read_to_its_end() {
    let source = io::Cursor::new("# ioatlas-trace 1\nA d ").chain(EndlessLine(1 << 20));
    let error = Trace::read("t", BufReader::new(source), Limits::default()).expect_err("endless");
    assert_eq!(
        error.to_string(),
        "t:2:4097: line is longer than 4096 bytes"
    );
}

#[test]
fn huge_mappings_cost_no_memory() {
    let text = "# ioatlas-trace 1\nM d 0 4503599627370496 rw\nA d fffffffffffff r\n\
                U d 1 4503599627370494\nU d 0 4503599627370496\n";
    let info = read("t", text.as_bytes()).unwrap().info();
    assert_eq!(info.peak_live_pages.0, 1 << 52);
    assert_eq!(info.anomalies.unmap_not_mapped_pages.0, (1 << 52) - 2);
}
