-- Wireshark dissector of Longhaul's bulk datagrams: the header that every datagram shows.
--
-- What is sealed stays closed. AEGIS-128L, the usual cipher, is in no library that Wireshark has,
-- and dissectors in Lua have no AES-GCM before Wireshark 4.2.
-- `session/src/seal.rs` and docs/protocol.md describe the format.

local longhaul = Proto("longhaul", "Longhaul bulk data")

local HEADER, TAG = 8, 16
local BULK = 0x2

local f = {
  kind = ProtoField.uint8("longhaul.kind", "Kind", base.HEX, { [BULK] = "bulk" }, 0xe0),
  epoch = ProtoField.uint8("longhaul.epoch", "Key epoch, modulo 16", base.DEC, nil, 0x0f),
  thread = ProtoField.uint8("longhaul.thread", "Thread", base.DEC, nil, 0xe0),
  lane = ProtoField.uint8("longhaul.lane", "Lane", base.DEC),
  session = ProtoField.uint16("longhaul.session", "Session, low half", base.HEX),
  number = ProtoField.uint32("longhaul.number", "Packet number, low half", base.DEC),
  sealed = ProtoField.bytes("longhaul.sealed", "Sealed"),
  length = ProtoField.uint32("longhaul.length", "Plaintext length", base.DEC),
  tag = ProtoField.bytes("longhaul.tag", "Tag"),
}
longhaul.fields = f

local e = {
  truncated = ProtoExpert.new("longhaul.truncated", "Shorter than header and tag", expert.group.MALFORMED, expert.severity.ERROR),
  kind = ProtoExpert.new("longhaul.not_bulk", "No bulk datagram", expert.group.MALFORMED, expert.severity.WARN),
}
longhaul.experts = e

longhaul.prefs.ports = Pref.range("UDP ports", "14792-14855", "wan.listen plus one, and those above for threads and lanes", 65535)

local function is_bulk(buffer)
  return buffer:len() >= HEADER + TAG and buffer(0, 1):bitfield(0, 3) == BULK
end

function longhaul.dissector(buffer, pinfo, tree)
  pinfo.cols.protocol = "Longhaul"
  local top = tree:add(longhaul, buffer())
  if buffer:len() < HEADER + TAG then
    top:add_proto_expert_info(e.truncated)
    pinfo.cols.info = "truncated"
    return buffer:len()
  end
  top:add(f.kind, buffer(0, 1))
  top:add(f.epoch, buffer(0, 1))
  top:add(f.thread, buffer(1, 1))
  -- Its upper bit stands in the first byte.
  local lane = buffer(0, 1):bitfield(3, 1) * 32 + buffer(1, 1):bitfield(3, 5)
  top:add(f.lane, buffer(0, 2), lane)
  top:add(f.session, buffer(2, 2))
  top:add(f.number, buffer(4, 4))
  local length = buffer:len() - HEADER - TAG
  if length > 0 then
    top:add(f.sealed, buffer(HEADER, length))
  end
  top:add(f.length, length):set_generated()
  top:add(f.tag, buffer(buffer:len() - TAG, TAG))
  if not is_bulk(buffer) then
    top:add_proto_expert_info(e.kind)
  end
  local thread = buffer(1, 1):bitfield(0, 3)
  local number, session = buffer(4, 4):uint(), buffer(2, 2):uint()
  pinfo.cols.info = string.format("session %04x thread %d lane %d number %d, %d B sealed", session, thread, lane, number, length)
  top:append_text(string.format(", lane %d, number %d", lane, number))
  return buffer:len()
end

local registered = ""
function longhaul.init()
  local ports = DissectorTable.get("udp.port")
  if registered ~= longhaul.prefs.ports then
    if registered ~= "" then
      ports:remove(registered, longhaul)
    end
    registered = longhaul.prefs.ports
    if registered ~= "" then
      ports:add(registered, longhaul)
    end
  end
end
DissectorTable.get("udp.port"):add(longhaul.prefs.ports, longhaul)
registered = longhaul.prefs.ports
