// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The one fault record of the units under test, read as software does and decoded here once more
//! (VT-d 4.1 §11.4.7).

use super::*;

/// A fault as a case expects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    pub reason: u8,
    pub source: SourceId,
    pub page: IovaPage,
    pub kind: AccessKind,
}

impl Run<'_> {
    /// The pending fault, if there is one, and frees its record. What has to do with PASIDs is left
    /// out: QEMU fills it.
    pub fn take_fault(&mut self) -> String {
        let r = &self.registers;
        let status = r.read32(FSTS);
        let (low, high) = (r.read64(Reg64(0x220)), r.read64(Reg64(0x228)));
        r.write64(Reg64(0x228), high & 1 << 63);
        r.write32(FSTS, status & FSTS_PFO);
        let pending = status & FSTS_PPF != 0;
        if !pending && high >> 63 == 0 {
            return "none".into();
        }
        let kind = match high >> 62 & 1 {
            1 => AccessKind::Read,
            _ => AccessKind::Write,
        };
        let expected = Expected {
            reason: (high >> 32) as u8,
            source: SourceId(high as u16),
            page: IovaPage(low >> GRANULE_LG2),
            kind,
        };
        let lost = if status & FSTS_PFO != 0 {
            ", more lost"
        } else {
            ""
        };
        let shown = if pending == (high >> 63 != 0) {
            ""
        } else {
            ", PPF and F differ"
        };
        format!("{expected}{lost}{shown}")
    }
    pub fn fault(&mut self, want: Expected) {
        self.fault_text(want.to_string());
    }
    pub fn fault_text(&mut self, want: String) {
        let got = self.take_fault();
        self.see("the fault recorded", got, want);
    }
    pub fn no_fault(&mut self) {
        let got = self.take_fault();
        self.see("the fault recorded", got, "none");
    }
}

impl Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
        };
        write!(
            f,
            "{kind} of page {} by {}, reason {:#x}",
            self.page, self.source, self.reason
        )
    }
}
