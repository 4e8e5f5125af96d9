// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Decompression: plain text, Zstandard and gzip, as one stream of bytes.
//!
//! Both compressed formats allow several frames in a row; all are read. A
//! checksum that a frame carries is verified. A frame that asks for a window
//! over 100 MiB is refused by the decoder.

use flate2::{bufread::MultiGzDecoder, write::GzEncoder};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use ruzstd::encoding::{CompressionLevel, FrameCompressor};
use std::error::Error as _;
use std::io::{self, BufRead, Read, Write};

/// How the bytes of a file are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Zstd,
    Gzip,
}

impl Compression {
    /// Decided by the file's name, else by its first bytes, none of which can
    /// begin a plain trace.
    pub fn detect(name: &str, first_bytes: &[u8]) -> Self {
        const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
        const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
        if name.ends_with(".zst") || first_bytes.starts_with(&ZSTD_MAGIC) {
            Self::Zstd
        } else if name.ends_with(".gz") || first_bytes.starts_with(&GZIP_MAGIC) {
            Self::Gzip
        } else {
            Self::None
        }
    }

    /// The decompressed stream. Its errors are of kind `UnexpectedEof` where the input ends early
    /// and `InvalidData` where it is damaged; others come from `source`.
    pub fn reader<'a, R: BufRead + 'a>(self, source: R) -> Box<dyn Read + 'a> {
        match self {
            Self::None => Box::new(source),
            Self::Zstd => Box::new(ZstdFrames::new(Counted { source, bytes: 0 })),
            Self::Gzip => Box::new(Gzip(MultiGzDecoder::new(Counted { source, bytes: 0 }))),
        }
    }
}

/// Gives the decoder's complaints the two kinds that [`Compression::reader`] promises.
struct Gzip<R>(MultiGzDecoder<Counted<R>>);

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf).map_err(|error| {
            let at = self.0.get_ref().bytes;
            match error.kind() {
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                    complaint(io::ErrorKind::InvalidData, at)
                }
                io::ErrorKind::UnexpectedEof => complaint(error.kind(), at),
                _ => error,
            }
        })
    }
}

/// Counts the bytes of the file that a decoder has taken.
struct Counted<R> {
    source: R,
    bytes: u64,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buf)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.source.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.bytes += amount as u64;
        self.source.consume(amount);
    }
}

/// What people are told of a file that a decoder refused after `bytes` of it.
fn complaint(kind: io::ErrorKind, bytes: u64) -> io::Error {
    let doubt = match kind {
        // a wrong length looks like an early end
        io::ErrorKind::UnexpectedEof => " (or the file is damaged)",
        _ => "",
    };
    io::Error::new(kind, format!("at byte {bytes} of the file{doubt}"))
}

/// Reads all frames of a Zstandard file, skippable ones skipped.
struct ZstdFrames<R> {
    source: Counted<R>,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> ZstdFrames<R> {
    fn new(source: Counted<R>) -> Self {
        Self {
            source,
            decoder: FrameDecoder::new(),
            in_frame: false,
        }
    }

    /// Starts the next data frame; false at the end of the file.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut (&mut self.source).take(length), &mut io::sink())?;
                    if skipped < length {
                        return Err(complaint(io::ErrorKind::UnexpectedEof, self.source.bytes));
                    }
                }
                Err(error) => return Err(as_io(&error, self.source.bytes)),
            }
        }
        Ok(false)
    }

    fn verify_checksum(&self) -> io::Result<()> {
        let Some(expected) = self.decoder.get_checksum_from_data() else {
            return Ok(());
        };
        if self.decoder.get_calculated_checksum() == Some(expected) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "checksum does not match",
        ))
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame {
                if !self.next_frame()? {
                    return Ok(0);
                }
                self.in_frame = true;
            }
            // Bytes within the window of a frame in progress are held back, so
            // one round of decoding may yield none.
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let strategy = BlockDecodingStrategy::UptoBytes(buf.len());
                self.decoder
                    .decode_blocks(&mut self.source, strategy)
                    .map_err(|error| as_io(&error, self.source.bytes))?;
            }
            let count = self.decoder.read(buf)?;
            if count > 0 {
                return Ok(count);
            }
            self.verify_checksum()?;
            self.in_frame = false;
        }
    }
}

/// The `io::Error` at the root of a decoder error, else `InvalidData`. The decoder's own words are
/// for its authors and left out.
fn as_io(error: &FrameDecoderError, bytes: u64) -> io::Error {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<io::Error>() {
            return match io.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => {
                    complaint(io.kind(), bytes)
                }
                kind => io::Error::new(kind, io.to_string()),
            };
        }
        cause = inner.source();
    }
    complaint(io::ErrorKind::InvalidData, bytes)
}

/// Compresses all of `source` as one Zstandard frame with a checksum, with bounded memory.
pub fn compress_zstd(source: impl Read, target: impl Write) -> io::Result<()> {
    // the encoder panics where its reader or writer fails, so both keep their errors and then do
    // nothing
    let (mut read, mut written) = (None, None);
    let mut encoder = FrameCompressor::new(CompressionLevel::Fastest);
    encoder.set_source(Latched {
        inner: source,
        failed: &mut read,
    });
    encoder.set_drain(Latched {
        inner: target,
        failed: &mut written,
    });
    encoder.compress();
    drop(encoder);
    match read.or(written) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Compresses all of `source` with gzip, with bounded memory.
pub fn compress_gzip(mut source: impl Read, target: impl Write) -> io::Result<()> {
    let mut encoder = GzEncoder::new(target, flate2::Compression::default());
    io::copy(&mut source, &mut encoder)?;
    encoder.finish()?.flush()
}

/// Ends, or swallows, after the first error.
struct Latched<'a, T> {
    inner: T,
    failed: &'a mut Option<io::Error>,
}

impl<R: Read> Read for Latched<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.failed.is_some() {
                return Ok(0);
            }
            match self.inner.read(buf) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => *self.failed = Some(error),
                done => return done,
            }
        }
    }
}

impl<W: Write> Write for Latched<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failed.is_none()
            && let Err(error) = self.inner.write_all(bytes)
        {
            *self.failed = Some(error);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_wins_then_magic() {
        assert_eq!(
            Compression::detect("a.trace", b"# ioatlas"),
            Compression::None
        );
        assert_eq!(Compression::detect("a.zst", b""), Compression::Zstd);
        assert_eq!(Compression::detect("a.gz", b""), Compression::Gzip);
        assert_eq!(
            Compression::detect("a", &[0x28, 0xb5, 0x2f, 0xfd, 0]),
            Compression::Zstd
        );
        assert_eq!(
            Compression::detect("a", &[0x1f, 0x8b, 8]),
            Compression::Gzip
        );
    }
}
