# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# From the loader to `kernel`, and from an interrupt to `interrupt`. AT&T syntax.

# The PVH note: QEMU's -kernel, Xen and Firecracker start an ELF image at the address it names, in 32-bit mode without
# paging. (ebx has the address of what the loader knows, among it the map of memory; unused here.)
.section .note.pvh, "a", @note
    .long 4, 8, 18                      # length of the name, of the address; 32-bit entry
    .asciz "Xen"
    .quad entry

# The low 4 GiB, virtual = physical, in leaves of 1 GiB: memory, and every register block that we use. Which of it is
# uncached is what firmware's MTRRs say.
.section .data
.balign 4096
level_4:
    .quad level_3 + 3                   # present, writable
    .fill 511, 8, 0
level_3:                                # present, writable, leaf
    .quad 0x00000083, 0x40000083, 0x80000083, 0xc0000083
    .fill 508, 8, 0
segments:
    .quad 0, 0x00af9b000000ffff         # none; 64-bit code
segments_end:
    .word segments_end - segments - 1
    .quad segments

.section .bss
.balign 16
    .skip 0x20000
stack:

.section .text
.code32
.global entry
entry:
    mov $level_4, %eax
    mov %eax, %cr3
    mov $0x20, %eax                     # PAE
    mov %eax, %cr4
    mov $0xc0000080, %ecx               # EFER
    rdmsr
    or $0x100, %eax                     # long mode
    wrmsr
    mov $0x80000001, %eax               # paging, protected mode
    mov %eax, %cr0
    lgdt segments_end
    ljmp $8, $long
.code64
long:
    xor %eax, %eax
    mov %eax, %ss                       # it has the loader's descriptor, and no other is needed
    mov $stack, %rsp
    call kernel                         # does not return

# A stub a vector, 16 bytes each. The processor pushes an error code for some exceptions; the others get a 0.
.balign 16
.global stubs
stubs:
.set vector, 0
.rept 34
    .balign 16
    .if (0x60227d00 >> vector) & 1 == 0
    push $0
    .endif
    push $vector
    jmp common
    .set vector, vector + 1
.endr

# Saves what a function may change. Code for this target uses no vector registers and no red zone; a kernel that does saves
# the former here, and gives handlers a stack of their own (IST).
common:
.irp register, rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11
    push %\register
.endr
    cld
    mov %rsp, %rdi
    call interrupt
.irp register, r11, r10, r9, r8, rdi, rsi, rdx, rcx, rax
    pop %\register
.endr
    add $16, %rsp                       # vector, error code
    iretq
