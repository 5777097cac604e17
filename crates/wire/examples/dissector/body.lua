local pmnet = Proto("pmnet", "pmnet")
pmnet.prefs.checksums = Pref.bool("Verify checksums", true, "Compute the CRC32C of each header and payload")

-- Fields -----------------------------------------------------------------

local all, declared = {}, {}

local function declare(key, field)
  declared[key] = field
  all[#all + 1] = field
  return field
end

-- Fields whose numbers are shown in hexadecimal, because they count nothing.
local HEX = { magic = true, key_hash = true, tag = true, flags = true, payload_crc = true, header_crc = true, token = true,
  shard_token = true, front = true, client = true, reply_crc = true, nonce = true, log_uuid = true }
local NAMES = { ["header.kind"] = WIRE.kinds, ["append.entry"] = WIRE.entries, ["nack.why"] = WIRE.let_go, ["command.form"] = WIRE.forms }

local function declare_number(group, abbreviation, spec)
  local key = group .. "." .. spec.name
  local shown_in = HEX[spec.name] and base.HEX or base.DEC
  local make = ({ [1] = ProtoField.uint8, [2] = ProtoField.uint16, [4] = ProtoField.uint32, [8] = ProtoField.uint64 })[spec.bytes]
  if spec.name == "fragment" or spec.name == "part" then
    return declare(key, ProtoField.string(abbreviation, spec.name))
  elseif not make then
    return declare(key, ProtoField.bytes(abbreviation, spec.name))
  end
  return declare(key, make(abbreviation, spec.name, shown_in, NAMES[key]))
end

for _, spec in ipairs(WIRE.header) do
  declare_number("header", "pmnet." .. spec.name, spec)
end
for _, view in ipairs(WIRE.views) do
  for _, spec in ipairs(view.fields) do
    declare_number(view.name, "pmnet." .. view.name .. "." .. spec.name, spec)
  end
  for _, flag in ipairs(view.flags) do
    declare(view.name .. "." .. flag.name,
      ProtoField.bool("pmnet." .. view.name .. "." .. flag.name, flag.name, 8, nil, flag.bit))
  end
end
for _, rows in ipairs({ "durable_row", "member", "session_row" }) do
  for _, spec in ipairs(WIRE[rows]) do
    declare_number(rows, "pmnet." .. rows .. "." .. spec.name, spec)
  end
end
for _, flag in ipairs(WIRE.member_flags) do
  declare("member." .. flag.name, ProtoField.bool("pmnet.member." .. flag.name, flag.name, 32, nil, flag.bit))
end

declare("name", ProtoField.string("pmnet.name", "What the packet is"))
declare("payload", ProtoField.bytes("pmnet.payload", "Payload"))
declare("text", ProtoField.string("pmnet.text", "Text for the operator"))
declare("token", ProtoField.uint64("pmnet.token", "Token of the session", base.HEX))
declare("front", ProtoField.uint64("pmnet.front", "Front id", base.HEX))
declare("read.key_hash", ProtoField.uint64("pmnet.read_keys.key_hash", "Hash of a key", base.HEX))
declare("shard_token", ProtoField.uint64("pmnet.shard_token", "Token of the shard", base.HEX))
declare("command.protocol", ProtoField.uint8("pmnet.command.protocol", "RESP version of the reply"))
declare("command.form", ProtoField.uint8("pmnet.command.form", "Form", base.DEC, WIRE.forms))
declare("command.database", ProtoField.uint32("pmnet.command.database", "Database"))
declare("command", ProtoField.string("pmnet.command", "Command"))
declare("reply", ProtoField.string("pmnet.reply", "Reply"))
declare("time_left", ProtoField.double("pmnet.time_left", "Time left of its caller, in seconds"))
declare("reject", ProtoField.string("pmnet.reject", "Refused as"))
declare("answer_in", ProtoField.framenum("pmnet.answer_in", "Answer in", base.NONE, frametype.RESPONSE))
declare("answer_to", ProtoField.framenum("pmnet.answer_to", "Answer to", base.NONE, frametype.REQUEST))
declare("answer_time", ProtoField.double("pmnet.answer_time", "Seconds since what it answers"))
declare("acknowledges", ProtoField.uint32("pmnet.acknowledges", "Updates that it is the first to acknowledge"))
pmnet.fields = all

local refused = ProtoExpert.new("pmnet.refused", "Every receiver drops this packet", expert.group.MALFORMED, expert.severity.ERROR)
local bad_payload = ProtoExpert.new("pmnet.bad_payload", "The payload is not what its kind has", expert.group.MALFORMED,
  expert.severity.ERROR)
local not_logged = ProtoExpert.new("pmnet.is_not_logged", "The update was not logged: its client falls back to the server",
  expert.group.SEQUENCE, expert.severity.WARN)
local nacked = ProtoExpert.new("pmnet.is_nacked", "The session is refused, or goes on elsewhere", expert.group.SEQUENCE,
  expert.severity.WARN)
pmnet.experts = { refused, bad_payload, not_logged, nacked }

-- CRC32C -----------------------------------------------------------------

local crc_table = {}
for byte = 0, 255 do
  local crc = byte
  for _ = 1, 8 do
    crc = crc % 2 == 1 and bit.bxor(bit.rshift(crc, 1), 0x82F63B78) or bit.rshift(crc, 1)
  end
  crc_table[byte] = crc
end

local function crc_of(text, crc)
  crc = crc or -1
  for at = 1, #text do
    crc = bit.bxor(bit.rshift(crc, 8), crc_table[bit.band(bit.bxor(crc, text:byte(at)), 0xFF)])
  end
  return crc
end

local function crc32c(...)
  local crc = nil
  for _, text in ipairs({ ... }) do
    crc = crc_of(text, crc)
  end
  return bit.bnot(crc or -1) % 4294967296
end

-- Reading ----------------------------------------------------------------

local at_name = {}
for _, spec in ipairs(WIRE.header) do
  at_name[spec.name] = spec
end

local function range(buffer, name)
  local spec = at_name[name]
  return buffer(spec.offset, spec.bytes)
end

-- Returns a number of 64 bits as text, because Lua's own numbers are too short.
local function long(buffer, name)
  return tostring(range(buffer, name):uint64())
end

local function view_of(kind, flags)
  local found
  for _, view in ipairs(WIRE.views) do
    if view.kind == kind and bit.band(flags, view.always) == view.always and (not found or view.always > found.always) then
      found = view
    end
  end
  return found
end

-- Returns the first reason for which a receiver refuses these bytes, in the order of docs/spec/wire.md §4; nil: there
-- is none.
local function reason_against(buffer)
  local length = buffer:reported_length_remaining()
  if length < WIRE.header_len then
    return "truncated"
  elseif range(buffer, "header_len"):uint() ~= WIRE.header_len then
    return "header_length"
  elseif length - WIRE.header_len > WIRE.payload_max then
    return "oversized"
  end
  -- The checksums can only be checked if the capture has the whole packet.
  local whole = buffer:len() == length and pmnet.prefs.checksums
  local crc = at_name.header_crc
  if whole and crc32c(buffer:raw(0, crc.offset), buffer:raw(crc.offset + crc.bytes, WIRE.header_len - crc.offset - crc.bytes))
      ~= range(buffer, "header_crc"):uint() then
    return "header_checksum"
  elseif not WIRE.kinds[range(buffer, "kind"):uint()] then
    return "kind"
  elseif range(buffer, "payload_len"):uint() ~= length - WIRE.header_len then
    return "payload_length"
  end
  local index, count = range(buffer, "fragment_index"):uint(), range(buffer, "fragment_count"):uint()
  if count > WIRE.fragments_max or index >= count then
    return "fragment"
  end
  local payload = length > WIRE.header_len and whole and buffer:raw(WIRE.header_len) or ""
  if whole and crc32c(payload) ~= range(buffer, "payload_crc"):uint() then
    return "payload_checksum"
  end
end

-- Payloads ---------------------------------------------------------------

-- Returns a text for people: characters that are not printable are written as escapes, as in C.
local function printable(text, most)
  local shown = text:sub(1, most):gsub("[%c\128-\255]", function(char)
    return ({ ["\r"] = "\\r", ["\n"] = "\\n" })[char] or string.format("\\x%02x", char:byte())
  end)
  return #text > most and shown .. "…" or shown
end

-- Returns the first words of each RESP command in these bytes, as far as this fragment has them.
local function commands_in(text)
  local found, at = {}, 1
  while at <= #text and #found < 64 do
    local count, after = text:match("^%*(%d+)\r\n()", at)
    if not count then
      break
    end
    local words = {}
    at = after
    for number = 1, tonumber(count) do
      local length, start = text:match("^%$(%d+)\r\n()", at)
      if not length then
        at = #text + 1
        break
      end
      if number <= 3 then
        words[number] = printable(text:sub(start, math.min(start + tonumber(length) - 1, #text)), 40)
      end
      at = start + tonumber(length) + 2
    end
    found[#found + 1] = table.concat(words, " ") .. (tonumber(count) > 3 and " …" or "")
  end
  return found
end

local function add_rows(tree, tvb, rows, title, row_bytes)
  local shown = tree:add(pmnet, tvb, title)
  for _, spec in ipairs(WIRE[rows]) do
    if spec.offset + spec.bytes <= row_bytes then
      shown:add(declared[rows .. "." .. spec.name], tvb(spec.offset, spec.bytes))
    end
  end
  return shown
end

local function bytes_of(rows)
  local last = WIRE[rows][#WIRE[rows]]
  return last.offset + last.bytes
end

local function add_members(tree, tvb, count)
  local length = bytes_of("member")
  for number = 1, count do
    local row = tvb((number - 1) * length, length)
    local shown = add_rows(tree, row, "member", "Member " .. number .. ": device " .. row(0, 4):uint(), length)
    for _, spec in ipairs(WIRE.member) do
      if spec.name == "flags" then
        for _, flag in ipairs(WIRE.member_flags) do
          shown:add(declared["member." .. flag.name], row(spec.offset, spec.bytes))
        end
      end
    end
  end
end

-- Functions that read a payload. Each returns a text for the column of information, or nil. False: the payload is not
-- one of its kind.
local payloads = {}

function payloads.identity(tree, tvb)
  if tvb:len() ~= 8 and tvb:len() ~= 16 then
    return false
  end
  tree:add(declared.token, tvb(0, 8))
  if tvb:len() == 16 then
    tree:add(declared.front, tvb(8, 8))
  end
end

function payloads.commands(tree, tvb, header)
  if header.index > 0 then
    return
  elseif tvb:len() < WIRE.preamble_len then
    return false
  end
  tree:add(declared["command.protocol"], tvb(1, 1))
  tree:add(declared["command.form"], tvb(2, 1))
  tree:add(declared["command.database"], tvb(4, 4))
  local form = WIRE.forms[tvb(2, 1):uint()]
  if not form then
    return false
  elseif form == "program" or tvb:len() == WIRE.preamble_len then
    return form
  end
  local rest = tvb(WIRE.preamble_len)
  local found = commands_in(rest:raw())
  for _, command in ipairs(found) do
    tree:add(declared.command, rest, command)
  end
  if #found == 0 then
    return false
  end
  return found[1] .. (#found > 1 and " (first of " .. #found .. ")" or "")
end

function payloads.reply(tree, tvb, header)
  if header.index == 0 and tvb:len() > 0 then
    local is_programs = tvb(0, 1):uint() == WIRE.reply_mark
    local text = is_programs and "of a program" or printable(tvb:raw(), 100)
    tree:add(declared.reply, tvb, text)
    return text
  end
end

function payloads.durable(tree, tvb, header)
  local length = bytes_of("durable_row")
  local count = tvb:len() / length
  if count < 1 or count ~= math.floor(count) or count > WIRE.chain_max or count ~= header.copies then
    return false
  end
  local shown = {}
  for number = 1, count do
    local row = tvb((number - 1) * length, length)
    local text = row(0, 4):uint() .. " up to " .. tostring(row(8, 8):uint64())
    add_rows(tree, row, "durable_row", "Device " .. text, length)
    shown[number] = text
  end
  return "(" .. table.concat(shown, ", ") .. ")"
end

function payloads.path(tree, tvb)
  local count = tvb:len() >= WIRE.payload_min and tvb(0, 4):uint() or 0
  if count < 1 or count > WIRE.chain_max then
    return false
  end
  add_members(tree, tvb(8, count * bytes_of("member")), count)
  return "path of " .. count
end

function payloads.recovery(tree, tvb)
  if tvb:len() < 16 then
    return false
  end
  local members, sessions = tvb(8, 4):uint(), tvb(12, 4):uint()
  local is_keyed = sessions >= 2147483648
  sessions = sessions % 2147483648
  local row_bytes = bytes_of("session_row") - (is_keyed and 0 or 8)
  local rows_at = 16 + members * bytes_of("member")
  if members > WIRE.chain_max or sessions > WIRE.session_rows_max or tvb:len() ~= rows_at + sessions * row_bytes then
    return false
  end
  tree:add(declared.shard_token, tvb(0, 8))
  if members > 0 then
    add_members(tree, tvb(16, rows_at - 16), members)
  end
  for number = 1, sessions do
    local row = tvb(rows_at + (number - 1) * row_bytes, row_bytes)
    add_rows(tree, row, "session_row", "Session " .. tostring(row(0, 8):uint64()), row_bytes)
  end
  return members .. " members, " .. sessions .. " sessions"
end

function payloads.text(tree, tvb)
  local text = printable(tvb:raw(), 1000)
  tree:add(declared.text, tvb, text)
  return text
end

function payloads.hashes(tree, tvb)
  if tvb:len() % 8 ~= 0 or tvb:len() / 8 > WIRE.read_keys_max then
    return false
  end
  for at = 0, tvb:len() - 8, 8 do
    tree:add(declared["read.key_hash"], tvb(at, 8))
  end
end

-- Kinds of packets that must have a payload.
local NEEDS_PAYLOAD = { open = true, durable = true, recover = true, recover_reply = true }

-- Returns the function that reads the payload of a packet with this view.
local function reader_of(view, header)
  if view.name == "append" then
    return ({ open = payloads.identity, update = payloads.commands })[WIRE.entries[header.copies]]
  elseif view.name == "recover_reply" then
    for _, flag in ipairs(view.flags) do
      if flag.name == "refused" and bit.band(header.flags, flag.bit) ~= 0 then
        return payloads.text
      end
    end
  end
  return ({ open = payloads.identity, ping = payloads.identity, update = payloads.commands, bypass = payloads.commands,
    fallback = payloads.commands, hit = payloads.commands, response = payloads.reply, durable = payloads.durable,
    recover = payloads.path, recover_reply = payloads.recovery, read_keys = payloads.hashes })[view.name]
end

-- Which packet answers which ----------------------------------------------

-- `answers`: for each packet (frame, and place in the frame), the request or answer that belongs to it. Wireshark
-- dissects all packets once in their order, and later in any order, so the table is filled only in the first pass.
local answers, asked, updates
function pmnet.init()
  answers, asked, updates = {}, {}, {}
end

local function note_request(key, pinfo, place)
  -- If a request is sent again, or was captured on several hops, its time is the time of its first packet.
  asked[key] = asked[key] or { frame = pinfo.number, time = pinfo.rel_ts }
  answers[place] = asked[key]
end

local function note_answer(key, pinfo, place)
  local request = asked[key]
  if request then
    request.answer = request.answer or pinfo.number
    answers[place] = { to = request.frame, time = pinfo.rel_ts - request.time }
  end
end

local function note_update(session, seq, pinfo, place)
  local open = updates[session] or { first = 1, last = 0, acked = 0 }
  updates[session] = open
  if seq > open.acked then
    open[seq] = open[seq] or { frame = pinfo.number, time = pinfo.rel_ts }
    open.last = math.max(open.last, seq)
    answers[place] = open[seq]
  end
end

local function note_ack(session, seq, pinfo, place)
  local open = updates[session]
  if not open or seq <= open.acked then
    return
  end
  local count, newest = 0, nil
  -- Only updates that were seen are looked at, because a damaged ACK may name any number.
  for number = open.acked + 1, math.min(seq, open.last) do
    local update = open[number]
    if update then
      update.answer, newest, count = pinfo.number, update, count + 1
      open[number] = nil
    end
  end
  open.acked = math.min(seq, open.last)
  if newest then
    answers[place] = { to = newest.frame, time = pinfo.rel_ts - newest.time, count = count }
  end
end

local function note(view, buffer, pinfo, place, payload)
  local shard = range(buffer, "shard"):uint() .. ":"
  local session, request = shard .. long(buffer, "session"), long(buffer, "request")
  local seq = range(buffer, "seq"):uint64():tonumber()
  local name = view.name
  if name == "update" then
    note_update(session, seq, pinfo, place)
  elseif name == "ack" then
    note_ack(session, seq, pinfo, place)
  elseif name == "bypass" or name == "fallback" then
    note_request(table.concat({ name, session, request }, ":"), pinfo, place)
  elseif name == "response" then
    local is_fallback = bit.band(range(buffer, "flags"):uint(), view.flags[1].bit) ~= 0
    note_answer(table.concat({ is_fallback and "fallback" or "bypass", session, request }, ":"), pinfo, place)
  elseif name == "read_keys" then
    note_request("read:" .. session .. ":" .. request, pinfo, place)
  elseif name == "hit" or name == "miss" then
    note_answer("read:" .. session .. ":" .. request, pinfo, place)
  elseif name == "recover" then
    note_request("recover:" .. request, pinfo, place)
  elseif name == "recover_reply" then
    note_answer("recover:" .. request, pinfo, place)
  elseif name == "open" and payload and payload:len() >= 8 then
    note_request("open:" .. shard .. tostring(payload(0, 8):uint64()), pinfo, place)
  elseif name == "open_reply" then
    -- With keys the tag is a MAC, and the token of the OPEN is in `order`.
    note_answer("open:" .. shard .. long(buffer, "order"), pinfo, place)
    note_answer("open:" .. shard .. long(buffer, "tag"), pinfo, place)
  end
end

local function show_answer(tree, place)
  local found = answers[place]
  if not found then
    return
  end
  if found.to then
    tree:add(declared.answer_to, found.to):set_generated()
    tree:add(declared.answer_time, found.time):set_generated()
    if found.count then
      tree:add(declared.acknowledges, found.count):set_generated()
    end
  elseif found.answer then
    tree:add(declared.answer_in, found.answer):set_generated()
  end
end

-- A packet ---------------------------------------------------------------

-- Byte b of `left` is (8 + m) * 2^e eighths of a millisecond (docs/spec/wire.md §2, "Time left").
local function time_left(byte)
  local number = byte - 1
  return (8 + number % 8) * 2 ^ math.floor(number / 8) / 8000
end

local function add_view(tree, buffer, view, flags)
  local words = {}
  local shown = tree:add(pmnet, buffer(0, WIRE.header_len), view.title)
  for _, spec in ipairs(view.fields) do
    local field, part = declared[view.name .. "." .. spec.name], buffer(spec.offset, spec.bytes)
    if spec.name == "fragment" or spec.name == "part" then
      local index, count = part(0, 2):uint(), part(2, 2):uint()
      shown:add(field, part, index .. "/" .. count)
      if count ~= 1 then
        words[#words + 1] = spec.name .. " " .. index .. "/" .. count
      end
    else
      shown:add(field, part)
      local value = tostring(spec.bytes == 8 and part:uint64() or part:uint())
      if spec.name == "left" then
        if value ~= "0" then
          shown:add(declared.time_left, part, time_left(part:uint()))
        end
      elseif spec.name == "entry" then
        words[#words + 1] = WIRE.entries[part:uint()] or value
      elseif not HEX[spec.name] and (value ~= "0" or spec.name == "session") then
        words[#words + 1] = spec.name .. " " .. value
      end
    end
  end
  for _, flag in ipairs(view.flags) do
    shown:add(declared[view.name .. "." .. flag.name], range(buffer, "flags"))
    if bit.band(flags, flag.bit) ~= 0 then
      words[#words + 1] = flag.name
    end
  end
  return table.concat(words, " ")
end

local function add_header(tree, buffer)
  local shown = tree:add(pmnet, buffer(0, math.min(WIRE.header_len, buffer:len())), "Header")
  for _, spec in ipairs(WIRE.header) do
    if spec.offset + spec.bytes <= buffer:len() then
      shown:add(declared["header." .. spec.name], buffer(spec.offset, spec.bytes))
    end
  end
end

local function is_ours(buffer)
  return buffer:len() >= 3 and buffer(0, 2):uint() == WIRE.magic and buffer(2, 1):uint() == WIRE.version
end

local function add_payload(tree, buffer, view, header)
  local reader = reader_of(view, header)
  local payload = buffer(WIRE.header_len)
  local shown = tree:add(declared.payload, payload)
  if not reader then
    return payload
  end
  local said = reader(shown, payload, header)
  if said == false then
    shown:add_proto_expert_info(bad_payload)
  end
  return payload, said
end

-- Adds a packet to the tree. Returns the text for the column of information.
local function dissect(buffer, pinfo, root, place)
  local tree = root:add(pmnet, buffer())
  local reason = reason_against(buffer)
  if reason then
    tree:add(declared.reject, reason):set_generated()
    tree:add_proto_expert_info(refused, WIRE.rejects[reason])
    add_header(tree, buffer)
    return "refused: " .. WIRE.rejects[reason]
  end
  local flags = range(buffer, "flags"):uint()
  local view = view_of(range(buffer, "kind"):uint(), flags)
  local header = { flags = flags, index = range(buffer, "fragment_index"):uint(), copies = range(buffer, "copies"):uint() }
  tree:add(declared.name, view.title):set_generated()
  tree:append_text(", " .. view.title)
  local info = { view.title, add_view(tree, buffer, view, flags) }
  add_header(tree, buffer)
  local payload
  if buffer:len() > WIRE.header_len then
    local said
    payload, said = add_payload(tree, buffer, view, header)
    info[#info + 1] = said or nil
  elseif NEEDS_PAYLOAD[view.name] then
    tree:add_proto_expert_info(bad_payload)
  end
  if view.name == "not_logged" then
    tree:add_proto_expert_info(not_logged)
  elseif view.name == "nack" then
    tree:add_proto_expert_info(nacked)
  end
  if not pinfo.visited then
    note(view, buffer, pinfo, place, payload)
  end
  show_answer(tree, place)
  return table.concat(info, " ")
end

-- A sender may hand several packets of one size to the system at once (UDP_SEGMENT). A capture on the sender's own
-- computer then shows them as one datagram. Returns the length of the first packet, if another packet follows;
-- otherwise the length of the whole datagram.
local function length_of_first(buffer)
  if buffer:len() > WIRE.header_len then
    local length = WIRE.header_len + range(buffer, "payload_len"):uint()
    if length + 3 <= buffer:len() and is_ours(buffer(length):tvb()) then
      return length
    end
  end
  return buffer:len()
end

function pmnet.dissector(buffer, pinfo, root)
  if not is_ours(buffer) then
    return 0
  end
  pinfo.cols.protocol = "pmnet"
  local infos, from = {}, 0
  while from < buffer:len() do
    local rest = buffer(from):tvb()
    local length = length_of_first(rest)
    -- A datagram of one packet is dissected as it was captured, perhaps cut.
    local packet = length == buffer:len() and buffer or rest(0, length):tvb()
    infos[#infos + 1] = dissect(packet, pinfo, root, pinfo.number .. ":" .. #infos)
    from = from + length
  end
  pinfo.cols.info = (#infos > 1 and #infos .. " packets: " or "") .. table.concat(infos, "; ")
  return buffer:len()
end

local function maybe(buffer, pinfo, root)
  if not is_ours(buffer) then
    return false
  end
  pmnet.dissector(buffer, pinfo, root)
  return true
end

DissectorTable.get("udp.port"):add(WIRE.ports, pmnet)
pmnet:register_heuristic("udp", maybe)
