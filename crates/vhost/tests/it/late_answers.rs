// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A back end whose answers come late, in part, or for something else: what the front end's half
//! may take them for.

use crate::common::*;
use ioatlas_dma::units::*;
use ioatlas_vhost::{
    protocol::{
        message::{FrontAddr, HEADER_BYTES, Header, IotlbMessage, VhostIotlbType},
        misses::IN_FLIGHT,
    },
    server::*,
};
use std::{
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// How long a front end here waits for an answer that does not come.
const PATIENCE: Duration = Duration::from_millis(50);

/// The back end's end of a control socket: it reads and answers when the test says so.
struct BackEnd(UnixStream);

impl BackEnd {
    fn pair() -> (UnixStream, BackEnd) {
        let (front, back) = UnixStream::pair().unwrap();
        front.set_read_timeout(Some(PATIENCE)).unwrap();
        back.set_read_timeout(Some(SOON)).unwrap();
        (front, BackEnd(back))
    }

    /// Reads one IOTLB message.
    fn read(&mut self) -> (Header, IotlbMessage) {
        let mut raw = [0; 44];
        self.0.read_exact(&mut raw).expect("a message");
        let header = Header::decode(raw[..HEADER_BYTES].try_into().unwrap());
        (header, IotlbMessage::decode(&raw[HEADER_BYTES..]).unwrap())
    }

    /// Whether another message is there to be read.
    fn has_message(&mut self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let read = self.0.read(&mut [0; 1]);
        self.0.set_nonblocking(false).unwrap();
        matches!(read, Ok(1))
    }

    fn answer(&mut self, header: Header, code: u64) -> io::Result<()> {
        self.0.write_all(&answer(header, code))
    }
}

fn answer(header: Header, code: u64) -> [u8; 20] {
    let mut raw = [0; 20];
    raw[..HEADER_BYTES].copy_from_slice(&header.reply(8).encode());
    raw[HEADER_BYTES..].copy_from_slice(&code.to_ne_bytes());
    raw
}

const PAGE: Mapping = Mapping {
    iova: Iova(0x5000),
    len: ByteCount(GRANULE),
    front: FrontAddr(0x7f00_0000_0000),
    perm: Perm::ReadWrite,
};

type Server = IotlbServer<PageMap, UserChannel>;

/// A server whose table has one page.
fn server(control: UnixStream) -> Server {
    let turn = Arc::new(Mutex::new(()));
    let channel = UserChannel::new(control, turn);
    let server = IotlbServer::new(PageMap::default(), channel, ServerConfig::default());
    server.table().map(PAGE);
    server
}

fn miss() -> IotlbMessage {
    IotlbMessage::miss(PAGE.iova, Perm::Read)
}

/// Takes the page from the table; the invalidation must fail with the channel shut down, and the
/// back end hold the page as far as is known.
fn assert_not_invalidated(server: &Server) {
    server.table().unmap(PAGE.iova, PAGE.len);
    for again in [false, true] {
        match server.invalidate(PAGE.iova, PAGE.len) {
            Err(ChannelError::ShutDown(message, _)) => {
                assert_eq!(message.kind, VhostIotlbType::Invalidate, "again: {again}");
            }
            Ok(()) => {
                panic!("P12: `invalidate` returned, and the back end has not read the invalidation")
            }
            other => panic!("{other:?}"),
        }
    }
    let (first, last) = (PAGE.iova.0, PAGE.iova.0 + PAGE.len.0 - 1);
    let held = server.held().within(first, last);
    assert_eq!(held, [(first, last)], "what was not invalidated is held");
}

#[test]
fn a_late_acknowledgement_is_not_taken_for_that_of_an_invalidation() {
    let (front, mut back) = BackEnd::pair();
    let server = server(front);
    assert!(matches!(
        server.handle(&miss()),
        Err(ChannelError::Io(_, e)) if e.kind() == io::ErrorKind::WouldBlock
    ));
    // Only now it answers the update.
    let (header, update) = back.read();
    assert_eq!(update.kind, VhostIotlbType::Update);
    let _ = back.answer(header, 0);
    assert_not_invalidated(&server);
    assert!(!back.has_message(), "nothing is sent any more");
}

#[test]
fn half_an_acknowledgement_ends_the_channel() {
    let (front, mut back) = BackEnd::pair();
    let server = server(front);
    // An answer to what will be asked, as far as its middle.
    let header = Header::request_with_reply(22, 32);
    back.0.write_all(&answer(header, 0)[..10]).unwrap();
    assert!(matches!(
        server.handle(&miss()),
        Err(ChannelError::Io(_, e)) if e.kind() == io::ErrorKind::WouldBlock
    ));
    let _ = back.0.write_all(&answer(header, 0)[10..]);
    let _ = back.answer(header, 0);
    assert_not_invalidated(&server);
}

#[test]
fn an_answer_to_something_else_ends_the_channel() {
    let (front, mut back) = BackEnd::pair();
    let server = server(front);
    let stray = Header::request_with_reply(5, 8);
    back.answer(stray, 0).unwrap();
    let header = Header::request_with_reply(22, 32);
    back.answer(header, 0).unwrap();
    assert!(matches!(
        server.handle(&miss()),
        Err(ChannelError::OutOfStep(..))
    ));
    assert_not_invalidated(&server);
}

#[test]
fn a_refusal_is_an_answer_and_the_channel_goes_on() {
    let (front, mut back) = BackEnd::pair();
    let server = server(front);
    let header = Header::request_with_reply(22, 32);
    back.answer(header, 7).unwrap();
    back.answer(header, 0).unwrap();
    let refused = server.handle(&miss());
    assert!(matches!(refused, Err(ChannelError::Refused(_, 7))));
    server.invalidate(PAGE.iova, PAGE.len).unwrap();
    assert_eq!(back.read().1.kind, VhostIotlbType::Update);
    assert_eq!(back.read().1.kind, VhostIotlbType::Invalidate);
}

/// A VMM may well have two channels on one socket, in turns; or requests of its own.
#[test]
fn another_user_of_the_socket_does_not_get_the_late_acknowledgement_either() {
    let (front, mut back) = BackEnd::pair();
    let turn = Arc::new(Mutex::new(()));
    let mut first = UserChannel::new(front.try_clone().unwrap(), turn.clone());
    let mut second = UserChannel::new(front, turn);
    let update = IotlbMessage::update(PAGE.iova, PAGE.len, PAGE.front, PAGE.perm);
    assert!(matches!(first.send(&update), Err(ChannelError::Io(..))));
    let (header, _) = back.read();
    let _ = back.answer(header, 0);
    let sent = second.send(&IotlbMessage::invalidate(PAGE.iova, PAGE.len));
    assert!(
        matches!(sent, Err(ChannelError::Io(..))),
        "P12: the other channel took a late acknowledgement for its own: {sent:?}"
    );
}

/// A device file that takes what it is told to take.
struct Takes(Vec<usize>);

impl Write for Takes {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self.0.pop() {
            Some(0) => Err(io::ErrorKind::OutOfMemory.into()),
            Some(some) => Ok(some.min(buf.len())),
            None => panic!("written once more"),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn half_a_message_to_the_kernel_ends_that_channel_and_a_failed_one_does_not() {
    let invalidation = IotlbMessage::invalidate(PAGE.iova, PAGE.len);
    // from the last: refused, taken, half taken
    let mut channel = KernelChannel::new(Takes(vec![30, 100, 0]));
    let failed = channel.send(&invalidation);
    assert!(matches!(failed, Err(ChannelError::Io(..))));
    channel.send(&invalidation).unwrap();
    let half = channel.send(&invalidation);
    assert!(matches!(half, Err(ChannelError::Io(..))));
    let next = channel.send(&invalidation);
    assert!(matches!(next, Err(ChannelError::ShutDown(..))), "{next:?}");
}

#[test]
fn half_a_miss_ends_the_back_channel_and_silence_does_not() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    let quiet = UserChannel::receive(&ours);
    assert!(matches!(quiet, Err(ChannelError::Closed(_))), "{quiet:?}");
    let header = Header::request(1, 32).encode();
    let whole = [&header[..], &miss().encode()].concat();
    theirs.write_all(&whole).unwrap();
    assert_eq!(UserChannel::receive(&ours).unwrap(), miss());
    theirs.write_all(&whole[..20]).unwrap();
    let half = UserChannel::receive(&ours);
    assert!(matches!(half, Err(ChannelError::Closed(_))), "{half:?}");
    // The rest, and a whole one, would be read from the middle on.
    assert!(theirs.write_all(&whole[20..]).is_err());
    let after = UserChannel::receive(&ours);
    assert!(matches!(after, Err(ChannelError::Closed(_))), "{after:?}");
}

/// A back end by hand, as far as `FrontEnd` needs one to connect: it asks for a translation at
/// once, and answers every request, but message 22 as if it were another. It returns the last
/// request that it read, once the socket is at its end.
fn answers_wrongly(socket: UnixStream) -> JoinHandle<u32> {
    std::thread::spawn(move || {
        let (mut back_channel, mut last) = (None, 0);
        let mut raw = [0; HEADER_BYTES];
        while let Ok((HEADER_BYTES, file)) = socket.recv_with_fd(&mut raw) {
            let header = Header::decode(&raw);
            let mut payload = vec![0; header.size as usize];
            if (&socket).read_exact(&mut payload).is_err() {
                break;
            }
            last = header.request;
            if last == 21 {
                let mut asks = UnixStream::from(OwnedFd::from(file.expect("a back channel")));
                let header = Header::request(1, 32).encode();
                let miss = [&header[..], &miss().encode()].concat();
                asks.write_all(&miss).unwrap();
                back_channel = Some(asks);
            }
            // GET_FEATURES, GET_PROTOCOL_FEATURES: all that the front end may want
            let value = match last {
                1 => u64::MAX,
                15 => 1 << 3 | 1 << 5,
                _ => 0,
            };
            let answers = match last {
                22 => Header::request_with_reply(5, 8),
                _ => header,
            };
            if matches!(last, 1 | 15) || header.needs_reply() {
                let _ = (&socket).write_all(&answer(answers, value));
            }
        }
        drop(back_channel);
        last
    })
}

#[test]
fn a_front_end_learns_that_misses_are_not_answered_any_more() {
    let (front, back) = UnixStream::pair().unwrap();
    back.set_read_timeout(Some(SOON)).unwrap();
    let back_end = answers_wrongly(back);
    let table = PageMap::default();
    table.map(PAGE);
    let config = front_config(WITH_IOMMU);
    let file = memory_file(ByteCount(1 << 20), Sealed::Yes).unwrap();
    let regions = vec![(0, ByteCount(1 << 20), file)];
    let mut front = FrontEnd::connect(front, config, regions, table).unwrap();
    eventually("it says so", || front.unanswered().map(|_| ()));
    let why = front.unanswered().unwrap();
    assert!(matches!(why, ChannelError::OutOfStep(..)), "{why}");
    let invalidated = front.server().invalidate(PAGE.iova, PAGE.len);
    assert!(
        matches!(invalidated, Err(ChannelError::ShutDown(..))),
        "{invalidated:?}"
    );
    // Nor can the socket's other users go on.
    assert!(front.stop_queue(0).is_err());
    drop(front);
    assert_eq!(back_end.join().unwrap(), 22, "nothing came after it");
}

/// A back end by hand that puts `questions` all at once when it is given a back channel, and
/// acknowledges everything but the memory tables after the first. Returns how many updates came.
fn asks_much(socket: UnixStream, questions: Vec<u8>) -> JoinHandle<usize> {
    std::thread::spawn(move || {
        let (mut back_channel, mut updates, mut tables) = (None, 0, 0);
        let mut raw = [0; HEADER_BYTES];
        while let Ok((HEADER_BYTES, file)) = socket.recv_with_fd(&mut raw) {
            let header = Header::decode(&raw);
            let mut payload = vec![0; header.size as usize];
            if (&socket).read_exact(&mut payload).is_err() {
                break;
            }
            if header.request == 21 {
                let mut asks = UnixStream::from(OwnedFd::from(file.expect("a back channel")));
                // In one piece, so that it fits into the socket.
                asks.write_all(&questions).unwrap();
                back_channel = Some(asks);
            }
            updates += usize::from(header.request == 22);
            tables += usize::from(header.request == 5);
            if header.request == 5 && tables > 1 {
                continue;
            }
            let value = match header.request {
                1 => u64::MAX,
                15 => 1 << 3 | 1 << 5,
                _ => 0,
            };
            if matches!(header.request, 1 | 15) || header.needs_reply() {
                let _ = (&socket).write_all(&answer(header, value));
            }
        }
        drop(back_channel);
        updates
    })
}

/// A question, with or without the wish for a reply.
fn question(header: Header) -> Vec<u8> {
    [&header.encode()[..], &miss().encode()].concat()
}

#[test]
fn a_call_answers_as_many_misses_as_there_may_be_and_no_more() {
    const MORE: usize = 300;
    let (front, back) = UnixStream::pair().unwrap();
    back.set_read_timeout(Some(SOON)).unwrap();
    let questions = question(Header::request(1, 32)).repeat(IN_FLIGHT + MORE);
    let back_end = asks_much(back, questions);
    let mut front = unserved(front, SOON);
    for answered in [IN_FLIGHT, MORE, 0] {
        assert_eq!(front.answer_misses().unwrap(), answered);
    }
    drop(front);
    assert_eq!(back_end.join().unwrap(), IN_FLIGHT + MORE);
}

/// A session in which the back end has so long for each answer.
fn unserved(control: UnixStream, answer: Duration) -> FrontEnd<PageMap> {
    let table = PageMap::default();
    table.map(PAGE);
    let file = memory_file(ByteCount(1 << 20), Sealed::Yes).unwrap();
    let regions = vec![(0, ByteCount(1 << 20), file)];
    let config = front_config(WITH_IOMMU).answer(answer);
    FrontEnd::connect_unserved(control, config, regions, table).unwrap()
}

/// Runs it on a thread of its own, which may hang.
#[track_caller]
fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    let ended = ended.recv_timeout(SOON);
    ended.unwrap_or_else(|_| panic!("P11: {what} is not over"))
}

/// Time enough to set a session up, however slow the machine, and little enough to wait for.
const FOR_SET_UP: Duration = Duration::from_secs(5);

/// Questions that want a reply, from a back end that reads none: the socket is soon full.
#[test]
fn replies_that_the_back_end_does_not_read_delay_nothing() {
    let (front, back) = UnixStream::pair().unwrap();
    back.set_read_timeout(Some(SOON)).unwrap();
    let questions = question(Header::request_with_reply(1, 32)).repeat(IN_FLIGHT);
    let _back_end = asks_much(back, questions);
    let mut front = unserved(front, FOR_SET_UP);
    let answered = within("answering misses", move || {
        let first = front.answer_misses();
        (first, front.answer_misses())
    });
    assert!(
        matches!(
            answered,
            (Err(ChannelError::Closed(_)), Err(ChannelError::Closed(_)))
        ),
        "nothing of half a reply: {answered:?}"
    );
}

#[test]
fn a_memory_table_that_is_not_acknowledged_delays_nothing() {
    let (front, back) = UnixStream::pair().unwrap();
    back.set_read_timeout(Some(SOON)).unwrap();
    let _back_end = asks_much(back, vec![]);
    let mut front = unserved(front, FOR_SET_UP);
    let shared = within("the sharing of memory", move || {
        let shared = front.share_memory().map_err(|e| e.to_string());
        // the turn is free again, and the socket's users learn that it is at its end
        (shared, front.stop_queue(0).is_err())
    });
    let (Err(why), true) = &shared else {
        panic!("{shared:?}");
    };
    assert!(why.contains("did not answer"), "{why}");
}
