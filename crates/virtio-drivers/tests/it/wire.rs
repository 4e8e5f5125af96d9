// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The drivers of network cards and consoles, with devices that send back what they are sent: a
//! cable whose ends are both in the card, a console that echoes.

use crate::platform::phys;
use crate::port::*;
use crate::setup::*;
use crate::soft::{FRAMES, machine};
use ioatlas_dma::{dma_api::Placement, units::*};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use virtio_drivers::device::{console::VirtIOConsole, net::VirtIONet};
use virtio_drivers::transport::DeviceType;

const SOURCE: SourceId = SourceId(0x30);

/// What precedes a packet.
const NET_HEADER: usize = 12;
/// Buffers that a card has to receive into.
const RECEIVE: usize = 16;
const BUFFER: usize = 2048;

/// Which of both it is, by the bytes before what is sent.
struct Loopback<const HEADER: usize>(VecDeque<Vec<u8>>);

type Card = Loopback<NET_HEADER>;
type Console = Loopback<0>;

impl<const HEADER: usize> Model for Loopback<HEADER> {
    const TYPE: DeviceType = match HEADER {
        NET_HEADER => DeviceType::Network,
        _ => DeviceType::Console,
    };

    /// Of a card, its address, and that its link is up.
    fn config(&self) -> Vec<u8> {
        match HEADER {
            NET_HEADER => vec![2, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0xdc, 5],
            _ => vec![0; 12],
        }
    }

    /// The first queue receives, the second sends.
    fn serve(&mut self, reach: &Reach, queue: usize, chain: &[Shared]) -> Moved<Option<u32>> {
        if queue == 1 {
            let mut sent = Vec::new();
            for part in chain {
                let from = sent.len();
                sent.resize(from + part.len, 0);
                reach.read(part.iova, &mut sent[from..])?;
            }
            self.0.push_back(sent.split_off(HEADER));
            return Ok(Some(0));
        }
        let Some(packet) = self.0.pop_front() else {
            return Ok(None);
        };
        let mut frame = vec![0; HEADER];
        if let Some(buffers) = frame.get_mut(10) {
            *buffers = 1; // that it is in one
        }
        frame.extend(packet);
        let mut rest = &frame[..];
        for part in chain {
            let (here, later) = rest.split_at(part.len.min(rest.len()));
            reach.write(part.iova, here)?;
            rest = later;
        }
        assert!(rest.is_empty(), "the buffer is too short");
        Ok(Some(frame.len() as u32))
    }
}

fn setup<const HEADER: usize>(protection: Protection) -> Setup<Loopback<HEADER>> {
    let model = Loopback(VecDeque::new());
    let machine = machine(FRAMES);
    Setup::with_model(machine, protection, SOURCE, MODERN, phys, model)
}

fn protections() -> Vec<Protection> {
    let below = Placement::Below(ByteCount(1000));
    [Placement::Never, Placement::Always, UNTRUSTED, below]
        .into_iter()
        .flat_map(|of| [Protection::strict(of), Protection::deferred(of)])
        .collect()
}

type CardDriver = VirtIONet<FirstHal, ioatlas_virtio_drivers::Translated<Port<Card>>, RECEIVE>;

fn card_driver(setup: &Setup<Card>) -> CardDriver {
    VirtIONet::new(setup.transport(), BUFFER).unwrap()
}

#[test]
fn packets_that_are_sent_are_received() {
    for protection in protections() {
        let setup = setup(protection);
        let mut driver = card_driver(&setup);
        assert_eq!(driver.mac_address(), [2, 0, 0, 0, 0, 1]);
        for nth in 0..5 * RECEIVE {
            let len = 60 + nth * 18;
            let mut packet = driver.new_tx_buffer(len);
            for (at, byte) in packet.packet_mut().iter_mut().enumerate() {
                *byte = (nth + at) as u8;
            }
            let sent = packet.packet().to_vec();
            driver.send(packet).unwrap();
            let received = driver.receive().unwrap();
            assert!(received.packet() == sent, "P7: {protection:?}, {len} bytes");
            driver.recycle_rx_buffer(received).unwrap();
            assert!(driver.receive().is_err(), "once");
        }
        assert_eq!(setup.faults(), 0, "P14: {protection:?}");
        drop(driver);
        setup.end();
    }
}

#[test]
fn a_console_echoes() {
    for protection in protections() {
        let setup: Setup<Console> = setup(protection);
        let mut driver = VirtIOConsole::<FirstHal, _>::new(setup.transport()).unwrap();
        let line = b"not a byte of it is lost, whatever the placement\n";
        driver.send_bytes(line).unwrap();
        driver.send(b'!').unwrap();
        for byte in line.iter().chain(b"!") {
            assert_eq!(driver.recv(true), Ok(Some(*byte)), "P7: {protection:?}");
        }
        assert_eq!(driver.recv(true), Ok(None));
        assert_eq!(setup.faults(), 0, "P14: {protection:?}");
        drop(driver);
        setup.end();
    }
}

/// The driver frees the buffers that it had given the card to receive into, and ends none of them.
#[test]
fn what_a_driver_leaves_with_its_device_is_blocked() {
    for protection in protections() {
        let setup = setup(protection);
        let driver = card_driver(&setup);
        let queue = setup.port.device().queues[0].unwrap();
        let posted: Vec<Iova> = (0..RECEIVE as u64)
            .map(|nth| {
                let mut iova = [0; 8];
                let at = Iova(queue.desc.0 + 16 * nth);
                setup.port.device().read(at, &mut iova).unwrap();
                Iova(u64::from_le_bytes(iova))
            })
            .collect();
        for at in &posted {
            setup.port.device().write(*at, &[0xee]).unwrap();
        }
        let (dma, at_reset) = (setup.dma.clone(), Arc::new(Mutex::new(None)));
        let told = at_reset.clone();
        let tell = move || *told.lock().unwrap() = Some(dma.raw_mappings());
        setup.port.device().on_reset = Some(Box::new(tell));
        drop(driver);
        setup.port.device().on_reset = None;
        let left = *at_reset.lock().unwrap();
        assert_eq!(left, Some(RECEIVE), "P1: reset before: {protection:?}");
        assert_eq!(setup.dma.raw_mappings(), 0, "P1: {protection:?}");
        if protection.placement == Placement::Never {
            setup.domain().flush().unwrap();
            let is_blocked = |at| setup.port.device().write(at, &[0xee]).is_err();
            assert!(
                posted.iter().all(|at| is_blocked(*at)),
                "P1: {protection:?}"
            );
        }
        // and the next driver begins anew
        let mut driver = card_driver(&setup);
        let mut packet = driver.new_tx_buffer(100);
        packet.packet_mut().fill(0x5a);
        driver.send(packet).unwrap();
        assert_eq!(driver.receive().unwrap().packet(), [0x5a; 100]);
        drop(driver);
        setup.end();
    }
}
