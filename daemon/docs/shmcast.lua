-- Shows the inside of shmcast's native packets in Wireshark, below MoldUDP64:
--
--   wireshark -X lua_script:shmcast.lua -d udp.port==30001,moldudp64
--
-- Bodies of sealed packets stay closed.

local native = Proto("shmcast", "shmcast native packet")

local kinds = { [1] = "data", [2] = "fragment", [4] = "pulse", [5] = "ask" }
local f = {
    version = ProtoField.uint8("shmcast.version", "Version"),
    kind = ProtoField.uint8("shmcast.kind", "Kind", base.DEC, kinds),
    sealed = ProtoField.bool("shmcast.sealed", "Sealed", 8, nil, 1),
    repair = ProtoField.bool("shmcast.repair", "Repair", 8, nil, 2),
    receiver = ProtoField.bool("shmcast.receiver", "From a receiver", 8, nil, 8),
    key = ProtoField.uint8("shmcast.key", "Key"),
    messages = ProtoField.uint16("shmcast.messages", "Messages"),
    sender = ProtoField.uint64("shmcast.sender", "Sender", base.HEX),
    number = ProtoField.uint64("shmcast.number", "Number"),
    control = ProtoField.uint8("shmcast.control", "Control kind"),
    time = ProtoField.uint64("shmcast.time", "Time in ns since 1970"),
    since = ProtoField.uint32("shmcast.since", "ns since the message before"),
    tag = ProtoField.uint16("shmcast.tag", "Tag"),
    is_key = ProtoField.bool("shmcast.is_key", "Key message", 8, nil, 1),
    bytes = ProtoField.bytes("shmcast.bytes", "Bytes"),
    total = ProtoField.uint32("shmcast.total", "Size of the message"),
    offset = ProtoField.uint32("shmcast.offset", "Offset"),
    next = ProtoField.uint64("shmcast.next", "Next sequence"),
    clock_error = ProtoField.uint32("shmcast.clock_error", "Clock error in ns"),
    ended = ProtoField.bool("shmcast.ended", "Session ended", 32, nil, 1),
    first = ProtoField.uint64("shmcast.first", "First sequence"),
    count = ProtoField.uint16("shmcast.count", "Count"),
    part = ProtoField.uint32("shmcast.part", "Bytes wanted"),
    sealed_body = ProtoField.bytes("shmcast.sealed_body", "Sealed body"),
}
native.fields = f

local function records(body, tree)
    tree:add(f.time, body(0, 8))
    local at = 8
    while at + 3 <= body:len() do
        local length, meta = body(at, 2):uint(), body(at + 2, 1):uint()
        local head = 3
        if bit32.band(meta, 2) ~= 0 then head = head + 2 end
        if bit32.band(meta, 4) ~= 0 then head = head + 4 end
        if at + head + length > body:len() then return end
        local name = bit32.band(meta, 128) ~= 0 and "Pad" or "Message"
        local record = tree:add(body(at, head + length), name .. ", " .. length .. " B")
        record:add(f.is_key, body(at + 2, 1))
        local field = at + 3
        if bit32.band(meta, 2) ~= 0 then
            record:add(f.tag, body(field, 2))
            field = field + 2
        end
        if bit32.band(meta, 4) ~= 0 then
            record:add(f.since, body(field, 4))
            field = field + 4
        end
        if length > 0 then record:add(f.bytes, body(field, length)) end
        at = at + head + length
    end
end

local function fragment(body, tree)
    tree:add(f.time, body(0, 8))
    tree:add(f.tag, body(8, 2))
    tree:add(f.is_key, body(10, 1))
    tree:add(f.total, body(12, 4))
    tree:add(f.offset, body(16, 4))
    tree:add(f.bytes, body(20))
end

local function pulse(body, tree)
    tree:add(f.next, body(0, 8))
    tree:add(f.time, body(32, 8))
    tree:add(f.clock_error, body(40, 4))
    tree:add(f.ended, body(44, 4))
end

local function ask(body, tree)
    for at = 0, body:len() - 18, 18 do
        local entry = tree:add(body(at, 18), "Entry")
        entry:add(f.first, body(at, 8))
        entry:add(f.count, body(at + 8, 2))
        entry:add(f.offset, body(at + 10, 4))
        entry:add(f.part, body(at + 14, 4))
    end
end

local bodies = { [1] = { records, 11 }, [2] = { fragment, 21 }, [4] = { pulse, 96 }, [5] = { ask, 18 } }

function native.dissector(buffer, pinfo, root)
    -- A native packet has one message, which says how long the rest is.
    local is_native = buffer:len() >= 44 and buffer(18, 2):uint() == 1
        and buffer(20, 2):uint() == buffer:len() - 22 and buffer(22, 1):uint() == 1
    if not is_native then return end
    local kind, flags = buffer(23, 1):uint(), buffer(24, 1)
    local tree = root:add(native, buffer(22))
    tree:add(f.version, buffer(22, 1))
    tree:add(f.kind, buffer(23, 1))
    if kind >= 32 then tree:add(f.control, buffer(23, 1), kind - 32) end
    tree:add(f.sealed, flags)
    tree:add(f.repair, flags)
    tree:add(f.receiver, flags)
    tree:add(f.key, buffer(25, 1))
    tree:add(f.messages, buffer(26, 2))
    tree:add(f.sender, buffer(28, 8))
    tree:add(f.number, buffer(36, 8))
    if buffer:len() == 44 then return end
    local body = buffer(44):tvb()
    if bit32.band(flags:uint(), 1) ~= 0 then
        tree:add(f.sealed_body, body())
    elseif bodies[kind] and body:len() >= bodies[kind][2] then
        bodies[kind][1](body, tree)
    elseif kind >= 32 then
        tree:add(f.bytes, body())
    end
end

-- It looks at each UDP packet beside the dissector of MoldUDP64, and leaves alone what is not native.
local whole = Field.new("udp.payload")
local after = Proto("shmcast_native", "shmcast")
function after.dissector(_, pinfo, root)
    local payload = whole()
    if payload then native.dissector(payload.range():tvb(), pinfo, root) end
end
register_postdissector(after)
