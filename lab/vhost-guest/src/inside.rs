// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What runs in the guest. It speaks to the program that watches by lines `ioatlas: ..` on the
//! console, and ends with an error at the first byte that is not what it should be.

use crate::arguments::Work;
use crate::pattern;
use crate::peer::{ECHO, TELL};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// How long an answer may take: a back end may be away, a guest is slow.
const PATIENCE: Duration = Duration::from_secs(100);
/// Bytes of a stream that are sent at a time.
const BLOCK: usize = 1 << 16;
/// Datagrams under way at once.
const WINDOW: u64 = 16;
const DATAGRAMS: u64 = 1600;
/// Most bytes of a datagram in one frame of 1,514.
const DATAGRAM_MOST: u64 = 1472;

/// Does the work, and says on the console what came of it.
pub fn run(peer: Ipv4Addr, work: Work) -> io::Result<()> {
    let mib = std::env::var("MIB").ok().and_then(|mib| mib.parse().ok());
    let bytes = mib.unwrap_or(1u64) << 20;
    match work {
        Work::Boots => {
            let (boots, _) = ask(peer, b"b")?;
            println!("{boots}");
        }
        Work::Traffic => {
            stream(peer, 1, bytes, |_| Ok(()))?;
            println!("ioatlas: tcp {bytes}");
            let lost = datagrams(peer)?;
            println!("ioatlas: udp {DATAGRAMS} {lost}");
        }
        Work::Restart => {
            stream(peer, 2, bytes, |done| {
                if done == bytes / 2 {
                    println!("ioatlas: restart");
                }
                // It has to have been in the middle, however slow the program that hears us is.
                match done + BLOCK as u64 {
                    last if last >= bytes => restarted(peer),
                    _ => Ok(()),
                }
            })?;
            println!("ioatlas: tcp {bytes}");
        }
    }
    Ok(())
}

/// Waits until the back end was started again.
fn restarted(peer: Ipv4Addr) -> io::Result<()> {
    let begun = Instant::now();
    while ask(peer, b"r")?.1 == 0 {
        if begun.elapsed() > PATIENCE {
            return Err(io::Error::other("the back end was not started again"));
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// What the peer tells: boots of the guest, restarts of the back end.
fn ask(peer: Ipv4Addr, question: &[u8]) -> io::Result<(u32, u32)> {
    let mut stream = connect(peer, TELL)?;
    stream.write_all(question)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let mut numbers = answer.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(boots)), Some(Ok(restarts))) => Ok((boots, restarts)),
        _ => Err(io::Error::other(format!("the peer told `{answer}`"))),
    }
}

fn connect(peer: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((peer, port)), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends so many bytes, reads them back at the same time, compares. `at` hears how many were
/// sent, each 64 KiB.
fn stream(
    peer: Ipv4Addr,
    seed: u64,
    bytes: u64,
    mut at: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = connect(peer, ECHO)?;
    let mut back = out.try_clone()?;
    let reader = thread::spawn(move || -> io::Result<()> {
        let mut block = vec![0; 1 << 16];
        let mut got = 0;
        while got < bytes {
            let len = back.read(&mut block)?;
            if len == 0 {
                return Err(io::Error::other(format!("TCP ended after {got} bytes")));
            }
            if let Some(byte) = pattern::differs(seed, got, &block[..len]) {
                return Err(io::Error::other(format!("TCP: byte {byte} is wrong")));
            }
            got += len as u64;
        }
        match back.read(&mut block)? {
            0 => Ok(()),
            more => Err(io::Error::other(format!("TCP: {more} bytes too many"))),
        }
    });
    let mut block = vec![0; BLOCK];
    for sent in (0..bytes).step_by(block.len()) {
        at(sent)?;
        pattern::fill(seed, sent, &mut block);
        out.write_all(&block)?;
    }
    out.shutdown(Shutdown::Write)?;
    let end = || io::Error::other("the reader ended");
    reader.join().map_err(|_| end())?
}

/// Sends datagrams of all lengths, a window at a time, and compares what comes back. Returns
/// how many did not.
fn datagrams(peer: Ipv4Addr) -> io::Result<u64> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((peer, ECHO))?;
    let (mut frame, mut back) = (vec![0; 1 << 11], vec![0; 1 << 11]);
    // 8 bytes say which it is; 911 visits all lengths above
    let len = |number: u64| 8 + (number * 911) % (DATAGRAM_MOST - 7);
    let mut lost = 0;
    for first in (0..DATAGRAMS).step_by(WINDOW as usize) {
        for number in first..first + WINDOW {
            let frame = &mut frame[..len(number) as usize];
            frame[..8].copy_from_slice(&number.to_le_bytes());
            pattern::fill(number, 0, &mut frame[8..]);
            socket.send(frame)?;
        }
        let mut missing: Vec<u64> = (first..first + WINDOW).collect();
        let begun = Instant::now();
        // a datagram is not sent again: what has not come in a while never will
        while !missing.is_empty() && begun.elapsed() < PATIENCE {
            socket.set_read_timeout(Some(PATIENCE))?;
            let got = match socket.recv(&mut back) {
                Ok(got) => &back[..got],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            let number = got.first_chunk().map(|number| u64::from_le_bytes(*number));
            let place = missing.iter().position(|of| Some(*of) == number);
            let place = place.ok_or_else(|| io::Error::other("a datagram that was not sent"))?;
            let number = missing.swap_remove(place);
            let wrong = pattern::differs(number, 0, &got[8..]);
            if let Some(byte) = wrong {
                let what = format!("UDP: byte {byte} of datagram {number} is wrong");
                return Err(io::Error::other(what));
            }
            if got.len() as u64 != len(number) {
                let what = format!("UDP: datagram {number} has {} bytes", got.len());
                return Err(io::Error::other(what));
            }
        }
        lost += missing.len() as u64;
    }
    Ok(lost)
}
