//! Types of the header. Names, members and values are the published ones.

#![expect(non_camel_case_types, missing_docs, reason = "the names are those that C programs use")]

/// An open device.
pub struct sdr_context;
/// A queue pair.
pub struct sdr_qp;
/// A message that is being sent.
pub struct sdr_send_handle;
/// A posted receive.
pub struct sdr_recv_handle;
/// Registered memory.
pub struct sdr_mr;

/// Return codes.
#[repr(C)]
pub enum sdr_errcode {
    /// Done.
    SDR_SUCCESS = 0,
    /// Not done; sdr_last_error says why.
    SDR_ERROR = 1,
    /// Not done for want of slots, credits or data at the moment. Try again later.
    SDR_RETRY = 2,
}

/// Payload bytes of a full packet.
#[repr(C)]
pub enum sdr_mtu {
    SDR_MTU_64,
    SDR_MTU_128,
    SDR_MTU_256,
    SDR_MTU_512,
    SDR_MTU_1024,
    SDR_MTU_2048,
    SDR_MTU_4096,
}

/// Operations.
#[repr(C)]
pub enum sdr_wr_opcode {
    /// Data.
    SDR_WR_WRITE,
    /// Data and 32 bits beside it, for messages of eight packets or more.
    SDR_WR_WRITE_WITH_IMM,
}

/// Access to registered memory.
#[repr(C)]
pub enum sdr_access_flags {
    SDR_ACCESS_REMOTE_WRITE = 0,
}

/// Any number that a program takes for an enum sdr_mtu. C enumerations hold others, too.
pub type AnyMtu = u32;
/// Any number that a program takes for an enum sdr_wr_opcode.
pub type AnyOpcode = u32;
/// Any number that a program takes for an enum sdr_access_flags.
pub type AnyAccess = u32;

/// Attributes of a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sdr_dev_attr {
    /// Channels of each queue pair, 1 to 8.
    pub num_channels: u32,
    /// Queue pairs at most, log2.
    pub log_max_qps: u32,
}

/// Attributes of a queue pair.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sdr_qp_attr {
    /// Bytes of a chunk, log2.
    pub bitmap_chunk_size_log_bytes: u32,
    /// Bytes in flight at most, log2.
    pub max_in_flight_log_bytes: usize,
    /// Messages in flight at most, log2, 10 at most.
    pub max_log_num_msgs: u32,
    /// Payload bytes of a full packet.
    pub mtu: AnyMtu,
    /// Not 0 if this side sends.
    pub send_enable: u8,
    /// Not 0 if this side receives.
    pub recv_enable: u8,
    /// Rate in Mbit/s; 0 stands for 1000.
    pub rate_limit: u32,
}

/// A one-shot send.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sdr_send_wr {
    /// The operation.
    pub opcode: AnyOpcode,
    /// The immediate, with SDR_WR_WRITE_WITH_IMM.
    pub imm_value: u32,
    /// Bytes.
    pub length: u32,
    /// Key of the memory.
    pub lkey: u32,
    /// Address of the data.
    pub local_addr: u64,
    /// Place in the receive buffer, in chunks.
    pub remote_offset: u64,
}

/// The start of a streaming send.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sdr_send_start_wr {
    /// The operation.
    pub opcode: AnyOpcode,
    /// The immediate, with SDR_WR_WRITE_WITH_IMM.
    pub imm_value: u32,
}

/// Chunks of a streaming send.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sdr_send_continue_wr {
    /// Bytes.
    pub length: u32,
    /// Address of the data.
    pub local_addr: u64,
    /// Key of the memory.
    pub lkey: u32,
    /// Place in the receive buffer, in chunks.
    pub remote_offset: u64,
}

/// A receive.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sdr_recv_wr {
    /// Bytes of the buffer.
    pub max_length: u32,
    /// Key of the memory.
    pub lkey: u32,
    /// Address of the buffer.
    pub address: u64,
}

/// Status of a completed send.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sdr_send_status {
    /// Always 0.
    pub flags: u32,
}
