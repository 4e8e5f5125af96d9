// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the guest's script says to the recorder.

use ioatlas_guest::{Console, Heard};

/// Calls of one kind that the guest's kernel counted itself, by its tracepoint's histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub events: u64,
    /// Pages, over all events.
    pub pages: u64,
    /// Sum over the histogram's lines: less than `events` if lines are missing.
    pub listed: u64,
    /// Events that found no room in the histogram.
    pub dropped: u64,
}

/// A range of a device's registers or memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// As `domain:bus:device.function`, all of them hexadecimal.
    pub device: String,
    /// Number of the base address register.
    pub number: u32,
    pub first: u64,
    pub last: u64,
}

/// All that the guest said.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Version of its kernel.
    pub kernel: String,
    /// Lines as in `/proc/kallsyms`.
    pub symbols: String,
    /// The firmware's DMAR table.
    pub dmar: Vec<u8>,
    /// Where devices have their registers.
    pub regions: Vec<Region>,
    pub maps: Counted,
    pub unmaps: Counted,
    /// What went wrong without ending the work.
    pub troubles: Vec<String>,
}

impl Console for Said {
    fn said(&mut self, word: &str, rest: &str) -> Heard {
        match word {
            "kernel" => {
                self.kernel = rest.into();
                return Heard::Phase("starts its device".into());
            }
            "works" => return Heard::Phase("does its work".into()),
            "comes" => return Heard::Phase("comes to rest".into()),
            "symbol" => {
                self.symbols += rest;
                self.symbols.push('\n');
            }
            "dmar" => self.dmar = bytes(rest).unwrap_or_default(),
            "region" => self.regions.extend(region(rest)),
            "map" => self.maps.line(rest),
            "unmap" => self.unmaps.line(rest),
            "trouble:" => self.troubles.push(rest.into()),
            _ => {}
        }
        Heard::Nothing
    }
}

impl Counted {
    /// A line of a histogram over sizes in bytes: `{ size: 4096 } hitcount: 3128`, and
    /// the totals below it.
    fn line(&mut self, line: &str) {
        let mut words = line.split_ascii_whitespace();
        let mut next = || words.next().unwrap_or_default();
        match next() {
            "{" => {
                let _key = next();
                let size: u64 = next().parse().unwrap_or_default();
                let (_brace, _word) = (next(), next());
                let hits: u64 = next().parse().unwrap_or_default();
                self.listed += hits;
                self.pages += hits * (size >> 12);
            }
            "Hits:" => self.events = next().parse().unwrap_or_default(),
            "Dropped:" => self.dropped = next().parse().unwrap_or_default(),
            _ => {}
        }
    }
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

fn region(text: &str) -> Option<Region> {
    let mut words = text.split(' ');
    let address = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    Some(Region {
        device: words.next()?.into(),
        number: words.next()?.parse().ok()?,
        first: address(words.next()?)?,
        last: address(words.next()?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_script_says_is_kept() {
        let console = "\
kernel 6.1.0-56-amd64
symbol ffffffff816da7c0 t intel_iommu_map_pages
dmar 444d4152
region 0000:00:06.0 2 0x00000000febfc000 0x00000000febfdfff
works\x20
map # event histogram
map { size:      12288 } hitcount:          2
map { size:       4096 } hitcount:       3171
map Totals:
map Hits: 3173
map Entries: 2
map Dropped: 0
unmap Hits: 1
unmap Dropped: 4
trouble: send
";
        let mut said = Said::default();
        let lines = console.lines().filter_map(|line| line.split_once(' '));
        let heard = lines.map(|(word, rest)| said.said(word, rest));
        let phases: Vec<_> = heard.filter(|heard| *heard != Heard::Nothing).collect();
        let phase = |what: &'static str| Heard::Phase(what.into());
        assert_eq!(phases, [phase("starts its device"), phase("does its work")]);
        assert_eq!(said.kernel, "6.1.0-56-amd64");
        assert_eq!(said.symbols, "ffffffff816da7c0 t intel_iommu_map_pages\n");
        assert_eq!(said.dmar, b"DMAR");
        let region = Region {
            device: "0000:00:06.0".into(),
            number: 2,
            first: 0xfebf_c000,
            last: 0xfebf_dfff,
        };
        assert_eq!(said.regions, [region]);
        let maps = Counted {
            events: 3173,
            pages: 3177,
            listed: 3173,
            dropped: 0,
        };
        assert_eq!(said.maps, maps);
        assert_eq!((said.unmaps.events, said.unmaps.dropped), (1, 4));
        assert_eq!(said.troubles, ["send"]);
    }
}
