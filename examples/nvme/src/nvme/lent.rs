// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What becomes of a buffer when the command that it was given for has ended, well or not.

use super::error::NvmeError;
use ioatlas_dma::{
    dma_api::{Client, CpuBuffer, DeviceBuffer, Way},
    translator::Translator,
};
use ioatlas_host::Host;

/// Takes `lent` back from the controller if the command that has it is over, as `ended` says.
///
/// # Errors
/// That of the command. Its buffer's memory is freed if the controller does not touch it any more
/// ([`NvmeError::is_over`]); else it stays the device's, mapped, until the domain ends. Of a
/// command that went well also [`NvmeError::UnmapList`].
pub fn settle<T: Translator<Host>, W: Way, R>(
    client: &Client<Host, T>,
    lent: DeviceBuffer<Host, W>,
    ended: Result<R, NvmeError>,
) -> Result<CpuBuffer<Host, W>, NvmeError> {
    match ended {
        Ok(_) => Ok(client.take_back(lent)?),
        Err(error) => {
            if error.is_over() {
                // the first error is the one to tell; what cannot be unmapped is never free
                drop(client.take_back(lent));
            }
            Err(error)
        }
    }
}
