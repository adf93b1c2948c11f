-- Wireshark dissector of Longhaul's bulk datagrams: the header that every datagram shows, and what
-- is sealed if there is a key log.
--
-- A gateway that runs with `--key-log FILE` writes the keys; the preference "Key log" names the
-- file. `session/src/seal.rs`, `session/src/key_log.rs` and docs/protocol.md describe the formats.
-- The ciphers are written out here, since Lua in Wireshark before 4.2 has none, and no version has
-- AEGIS-128L. Only of AEGIS-128L the tag is checked.

local longhaul = Proto("longhaul", "Longhaul bulk data")

local HEADER, TAG = 8, 16
local BULK = 0x2

local KINDS = { [3] = "REPORT", [4] = "PATH", [5] = "PROBE", [6] = "MTU", [7] = "PIECE", [128] = "DATA", [192] = "PARITY" }
local CODINGS = { [0] = "none", "sr", "xor", "mds" }
local RECORDS = { "REQUEST", "RESPONSE", "DATAGRAM", "ABORT", "FAIL", "CLOSE", "IDLE", "ORDERED", "RETRY" }

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
  packet = ProtoField.string("longhaul.packet", "Packet"),
  stream = ProtoField.uint16("longhaul.stream", "Stream", base.DEC),
  repair = ProtoField.bool("longhaul.repair", "Sent again"),
  coding = ProtoField.string("longhaul.coding", "Coding"),
  sequence = ProtoField.uint32("longhaul.sequence", "Sequence number, low half", base.DEC),
  record = ProtoField.string("longhaul.record", "Record"),
  flow = ProtoField.uint32("longhaul.flow", "Flow", base.DEC),
  opcode = ProtoField.uint8("longhaul.opcode", "RoCE opcode", base.HEX),
}
longhaul.fields = f

local e = {
  truncated = ProtoExpert.new("longhaul.truncated", "Shorter than header and tag", expert.group.MALFORMED, expert.severity.ERROR),
  cut = ProtoExpert.new("longhaul.cut", "The capture has not all of it: it cannot be opened", expert.group.UNDECODED, expert.severity.NOTE),
  kind = ProtoExpert.new("longhaul.not_bulk", "No bulk datagram", expert.group.MALFORMED, expert.severity.WARN),
  tag = ProtoExpert.new("longhaul.not_authentic", "Not sealed with the key of the log", expert.group.DECRYPTION, expert.severity.WARN),
}
longhaul.experts = e

longhaul.prefs.ports = Pref.range("UDP ports", "14792-14855", "wan.listen plus one, and those above for threads and lanes", 65535)
longhaul.prefs.keylog = Pref.string("Key log", "", "The file that a gateway's --key-log names")

-- Ciphers. Blocks are four words, most significant byte first.

local bit = bit or bit32
local band, bxor, lshift, rshift, rol = bit.band, bit.bxor, bit.lshift, bit.rshift, bit.rol or bit.lrotate

local sbox, t0, t1, t2, t3 = {}, {}, {}, {}, {}
do
  -- The field's logarithms to base 3 (FIPS 197, 4.2 and 5.1.1).
  local power, logarithm, x = {}, {}, 1
  for i = 0, 254 do
    power[i], logarithm[x] = x, i
    local double = x * 2
    if double > 255 then double = bxor(double, 0x11b) end
    x = bxor(x, double)
  end
  local function times(a, b)
    if a == 0 or b == 0 then return 0 end
    return power[(logarithm[a] + logarithm[b]) % 255]
  end
  for i = 0, 255 do
    local inverse = i == 0 and 0 or power[(255 - logarithm[i]) % 255]
    local s, turned = 0x63, inverse
    for _ = 0, 4 do
      s = bxor(s, turned)
      turned = band(bxor(lshift(turned, 1), rshift(turned, 7)), 0xff)
    end
    sbox[i] = s
    local word = bxor(lshift(times(s, 2), 24), lshift(s, 16), lshift(s, 8), times(s, 3))
    t0[i], t1[i], t2[i], t3[i] = word, rol(word, 24), rol(word, 16), rol(word, 8)
  end
end

local function columns(a, k, at)
  at = at or 1
  local out = {}
  for i = 0, 3 do
    out[i + 1] = bxor(
      t0[rshift(a[i + 1], 24)], t1[band(rshift(a[(i + 1) % 4 + 1], 16), 0xff)],
      t2[band(rshift(a[(i + 2) % 4 + 1], 8), 0xff)], t3[band(a[(i + 3) % 4 + 1], 0xff)], k[at + i])
  end
  return out
end

local function xor(a, b)
  return { bxor(a[1], b[1]), bxor(a[2], b[2]), bxor(a[3], b[3]), bxor(a[4], b[4]) }
end

local function both(a, b)
  return { band(a[1], b[1]), band(a[2], b[2]), band(a[3], b[3]), band(a[4], b[4]) }
end

local function word(text, at)
  local a, b, c, d = text:byte(at, at + 3)
  return bxor(lshift(a or 0, 24), lshift(b or 0, 16), lshift(c or 0, 8), d or 0)
end

-- A block of the text; what is missing of it counts as zeros.
local function block(text, at)
  return { word(text, at), word(text, at + 4), word(text, at + 8), word(text, at + 12) }
end

local function bytes(words)
  local out = {}
  for _, w in ipairs(words) do
    out[#out + 1] = string.char(band(rshift(w, 24), 0xff), band(rshift(w, 16), 0xff), band(rshift(w, 8), 0xff), band(w, 0xff))
  end
  return table.concat(out)
end

-- draft-irtf-cfrg-aegis-aead, AEGIS-128L: the plaintext, and whether the tag is right.
local AEGIS_0 = { 0x00010102, 0x0305080d, 0x15223759, 0x90e97962 }
local AEGIS_1 = { 0xdb3d1855, 0x6dc22ff1, 0x20113142, 0x73b528dd }
local function aegis(key, nonce, header, text, tag)
  local k, n = block(key, 1), block(nonce, 1)
  local s = { xor(k, n), AEGIS_1, AEGIS_0, AEGIS_1, xor(k, n), xor(k, AEGIS_0), xor(k, AEGIS_1), xor(k, AEGIS_0) }
  local function update(a, b)
    s = {
      columns(s[8], xor(s[1], a)), columns(s[1], s[2]), columns(s[2], s[3]), columns(s[3], s[4]),
      columns(s[4], xor(s[5], b)), columns(s[5], s[6]), columns(s[6], s[7]), columns(s[7], s[8]),
    }
  end
  for _ = 1, 10 do update(n, k) end
  update(block(header, 1), block(header, 17))
  local out = {}
  for at = 1, #text, 32 do
    local a = xor(block(text, at), xor(xor(s[7], s[2]), both(s[3], s[4])))
    local b = xor(block(text, at + 16), xor(xor(s[3], s[6]), both(s[7], s[8])))
    local plain = (bytes(a) .. bytes(b)):sub(1, #text - at + 1)
    out[#out + 1] = plain
    update(block(plain, 1), block(plain, 17))
  end
  -- Lengths in bits, 64 each with the least significant byte first.
  local function length(count)
    local bits = count * 8
    return string.char(bits % 256, math.floor(bits / 256) % 256, math.floor(bits / 65536) % 256, 0, 0, 0, 0, 0)
  end
  local final = xor(s[3], block(length(#header) .. length(#text), 1))
  for _ = 1, 7 do update(final, final) end
  local sum = s[1]
  for i = 2, 7 do sum = xor(sum, s[i]) end
  return table.concat(out), bytes(sum) == tag
end

-- AES-128 in counter mode, as GCM has it (NIST SP 800-38D).
local function gcm(key, nonce, _, text)
  local w = block(key, 1)
  local round = 1
  for i = 5, 44 do
    local last = w[i - 1]
    if i % 4 == 1 then
      last = bxor(
        lshift(sbox[band(rshift(last, 16), 0xff)], 24), lshift(sbox[band(rshift(last, 8), 0xff)], 16),
        lshift(sbox[band(last, 0xff)], 8), sbox[rshift(last, 24)], lshift(round, 24))
      round = round * 2
      if round > 255 then round = bxor(round, 0x11b) end
    end
    w[i] = bxor(w[i - 4], last)
  end
  local out = {}
  for index = 0, math.ceil(#text / 16) - 1 do
    local a = block(nonce .. "\0\0\0\0", 1)
    a[4] = index + 2
    a = xor(a, w)
    for r = 1, 9 do a = columns(a, w, 4 * r + 1) end
    local last = {}
    for i = 0, 3 do
      last[i + 1] = bxor(
        lshift(sbox[rshift(a[i + 1], 24)], 24), lshift(sbox[band(rshift(a[(i + 1) % 4 + 1], 16), 0xff)], 16),
        lshift(sbox[band(rshift(a[(i + 2) % 4 + 1], 8), 0xff)], 8), sbox[band(a[(i + 3) % 4 + 1], 0xff)], w[41 + i])
    end
    out[#out + 1] = bytes(xor(last, block(text, 16 * index + 1)))
  end
  return table.concat(out):sub(1, #text)
end

-- ChaCha20 (RFC 8439); its words have the least significant byte first.
local function chacha(key, nonce, _, text)
  local function little(source, at)
    local a, b, c, d = source:byte(at, at + 3)
    return bxor(a, lshift(b, 8), lshift(c, 16), lshift(d, 24))
  end
  local start = { 0x61707865, 0x3320646e, 0x79622d32, 0x6b206574 }
  for i = 0, 7 do start[5 + i] = little(key, 4 * i + 1) end
  for i = 0, 2 do start[14 + i] = little(nonce, 4 * i + 1) end
  local function plus(a, b) return band(a % 4294967296 + b % 4294967296, 0xffffffff) end
  local out = {}
  for index = 0, math.ceil(#text / 64) - 1 do
    start[13] = index + 1
    local x = {}
    for i = 1, 16 do x[i] = start[i] end
    local function quarter(a, b, c, d)
      x[a] = plus(x[a], x[b]); x[d] = rol(bxor(x[d], x[a]), 16)
      x[c] = plus(x[c], x[d]); x[b] = rol(bxor(x[b], x[c]), 12)
      x[a] = plus(x[a], x[b]); x[d] = rol(bxor(x[d], x[a]), 8)
      x[c] = plus(x[c], x[d]); x[b] = rol(bxor(x[b], x[c]), 7)
    end
    for _ = 1, 10 do
      quarter(1, 5, 9, 13); quarter(2, 6, 10, 14); quarter(3, 7, 11, 15); quarter(4, 8, 12, 16)
      quarter(1, 6, 11, 16); quarter(2, 7, 12, 13); quarter(3, 8, 9, 14); quarter(4, 5, 10, 15)
    end
    for i = 1, 16 do
      local w = plus(x[i], start[i])
      for byte = 0, 3 do
        local at = 64 * index + 4 * (i - 1) + byte + 1
        if at <= #text then
          out[at] = string.char(bxor(band(rshift(w, 8 * byte), 0xff), text:byte(at)))
        end
      end
    end
  end
  return table.concat(out)
end

local CIPHERS = { ["aegis-128l"] = aegis, ["aes-128-gcm"] = gcm, ["chacha20-poly1305"] = chacha }

-- The key log: by session and epoch the key logged last.
local keys = {}
local function unhex(text)
  return (text:gsub("%x%x", function(digits) return string.char(tonumber(digits, 16)) end))
end
local function read_keys(path)
  keys = {}
  local file = path ~= "" and io.open(path, "r")
  if not file then return end
  for line in file:lines() do
    local session, epoch, cipher, key, iv = line:match("^longhaul%-bulk%-1 (%x+) (%d+) (%S+) (%x+) (%x+)$")
    if session and CIPHERS[cipher] then
      keys[tonumber(session, 16) * 16 + tonumber(epoch)] = { open = CIPHERS[cipher], key = unhex(key), iv = unhex(iv) }
    end
  end
  file:close()
end

-- The nonce is the IV XOR the threads, lane and the packet's number, of which the upper half is
-- taken for 0: a lane's first 2^32 packets. `difference`: the receiver's thread XOR the sender's.
local function nonce(iv, header, difference)
  local lane = band(header:byte(2), 0x1f) + 2 * band(header:byte(1), 0x10)
  local path = string.char(rshift(header:byte(2), 5) + 8 * difference, lane)
  local number = path .. "\0\0\0\0" .. header:sub(5, 8)
  local out = { iv:sub(1, #iv - #number) }
  for i = 1, #number do
    out[#out + 1] = string.char(bxor(iv:byte(#iv - #number + i), number:byte(i)))
  end
  return table.concat(out)
end

-- A number of a flow, and the byte after it (docs/protocol.md#rule-flow-bytes).
local function flow_number(buffer, at)
  local first = buffer(at, 1):uint()
  local long = ({ [0] = 1, 2, 4, 5 })[rshift(first, 6)]
  if at + long > buffer:len() then return nil end
  local number = long == 5 and 0 or band(first, 0x3f)
  for i = 1, long - 1 do number = number * 256 + buffer(at + i, 1):uint() end
  return number, at + long
end

local function show_record(buffer, tree)
  local first = buffer(0, 1):uint()
  local kind = RECORDS[band(first, 0x0f)] or "unknown"
  local top = tree:add(f.record, buffer(), kind)
  local at = (kind == "ABORT" or kind == "FAIL") and 2 or 1
  if kind == "DATAGRAM" then
    if buffer:len() > 38 then top:add(f.opcode, buffer(38, 1)) end
  elseif kind ~= "unknown" and at < buffer:len() then
    local number, after = flow_number(buffer, at)
    if not number then return kind end
    top:add(f.flow, buffer(at, after - at), number)
    local is_carried = kind == "REQUEST" or kind == "RESPONSE" or kind == "ORDERED"
    local has_address = kind == "ORDERED" or (kind == "REQUEST" and band(first, 0x10) ~= 0)
    local body = after + 4 + (has_address and 37 or 0)
    if is_carried and body < buffer:len() then top:add(f.opcode, buffer(body, 1)) end
  end
  return kind
end

-- Records that stand whole in a DATA packet, and the first piece of one that does not.
local function show_frames(buffer, tree)
  local names, at = {}, 0
  while at + 2 <= buffer:len() do
    local first = buffer(at, 2):uint()
    if first == 0 then break end
    if first >= 0x8000 then
      local back = band(rshift(first, 8), 0x7f)
      names[#names + 1] = back == 0 and "begin of a record" or "piece of a record"
      tree:add(f.record, buffer(at), names[#names])
      break
    end
    local length = first - 1
    if at + 2 + length > buffer:len() then break end
    if length > 0 then names[#names + 1] = show_record(buffer(at + 2, length):tvb(), tree) end
    at = at + 2 + length
  end
  return table.concat(names, ", ")
end

local function show_inside(buffer, tree)
  if buffer:len() < 2 then return "" end
  local first = buffer(0, 1):uint()
  local kind = KINDS[first < 128 and first or band(first, 0xc0)] or "unknown"
  tree:add(f.packet, buffer(0, 1), kind)
  if first < 128 then
    if buffer:len() >= 4 then tree:add(f.stream, buffer(2, 2)) end
    return kind
  end
  local coding = band(rshift(first, 2), 3)
  tree:add(f.repair, buffer(0, 1), band(first, 0x20) ~= 0)
  tree:add(f.coding, buffer(0, 1), CODINGS[coding])
  tree:add(f.stream, buffer(0, 2), band(buffer(0, 2):uint(), 0x3ff))
  local at = kind == "DATA" and 7 or 5
  if buffer:len() < at + 4 then return kind end
  tree:add(f.sequence, buffer(at, 4))
  local frames = coding >= 2 and 19 or 11
  if kind == "DATA" and buffer:len() > frames then
    return kind .. ": " .. show_frames(buffer(frames):tvb(), tree)
  end
  return kind
end

local function open(buffer, tree)
  local header = buffer(0, HEADER):raw()
  local session, epoch, difference = buffer(2, 2):uint(), buffer(0, 1):bitfield(4, 4), 0
  local key = keys[session * 16 + epoch]
  if not key then
    -- Between threads of different numbers (docs/protocol.md#rule-receiver).
    difference = band(session, 7)
    key = keys[(session - difference) * 16 + epoch]
  end
  local length = buffer:len() - HEADER - TAG
  if not key or length == 0 then return nil end
  local sealed, tag = buffer(HEADER, length):raw(), buffer(HEADER + length, TAG):raw()
  local text, is_authentic = key.open(key.key, nonce(key.iv, header, difference), header, sealed, tag)
  if is_authentic == false then
    tree:add_proto_expert_info(e.tag)
    return nil
  end
  return show_inside(ByteArray.new(text, true):tvb("Opened"), tree)
end

local function is_bulk(buffer)
  return buffer(0, 1):bitfield(0, 3) == BULK
end

function longhaul.dissector(buffer, pinfo, tree)
  pinfo.cols.protocol = "Longhaul"
  local top = tree:add(longhaul, buffer())
  -- A capture may hold the begin of each packet only (tcpdump -s).
  local whole, is_cut = buffer:reported_len(), buffer:len() < buffer:reported_len()
  if whole < HEADER + TAG then
    top:add_proto_expert_info(e.truncated)
    pinfo.cols.info = "truncated"
    return buffer:len()
  end
  if is_cut then top:add_proto_expert_info(e.cut) end
  if buffer:len() < HEADER then
    pinfo.cols.info = "cut by the capture"
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
  local length = whole - HEADER - TAG
  local here = math.min(length, buffer:len() - HEADER)
  if here > 0 then
    top:add(f.sealed, buffer(HEADER, here))
  end
  top:add(f.length, length):set_generated()
  if not is_cut then top:add(f.tag, buffer(whole - TAG, TAG)) end
  local inside
  if is_bulk(buffer) then
    inside = not is_cut and open(buffer, top) or nil
  else
    top:add_proto_expert_info(e.kind)
  end
  local thread = buffer(1, 1):bitfield(0, 3)
  local number, session = buffer(4, 4):uint(), buffer(2, 2):uint()
  local info = string.format("session %04x thread %d lane %d number %d, ", session, thread, lane, number)
  pinfo.cols.info = info .. (inside or string.format("%d B sealed", length))
  top:append_text(string.format(", lane %d, number %d", lane, number))
  return buffer:len()
end

local registered = ""
function longhaul.init()
  read_keys(longhaul.prefs.keylog)
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
