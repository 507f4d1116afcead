package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/fabric"
)

// The frames of the streams between agents, as bytes. The functions without a receiver are pure.

// kind says what a frame is. docs/formats/link.md has them byte by byte.
type kind uint8

const (
	kindHello   kind = iota + 1 // the first frame of the agent that dialled: JSON
	kindWelcome                 // the answer: JSON
	kindRefusal                 // the answer of an agent that refuses: JSON
	kindReady                   // a link is complete
	kindBeat                    // a sign of life
	kindMessage                 // a message for the Handler
	kindGoodbye                 // the last frame, with the reason as text
	kindPiece                   // 24 bytes that name a piece, and its payload; on data streams only
)

// maxBody is the largest body of each kind, in bytes. A frame with a longer one is not read.
var maxBody = [...]uint32{
	kindHello:   16 << 10,
	kindWelcome: 4 << 20,
	kindRefusal: 4 << 10,
	kindReady:   0,
	kindBeat:    0,
	kindMessage: fabric.MaxMessage,
	kindGoodbye: 1 << 10,
	kindPiece:   pieceBytes + fabric.MaxPiece,
}

const (
	headBytes  = 8  // the head of a frame: length u32, kind u8, three zeros
	pieceBytes = 24 // the name of a piece: transfer u64, offset u64, part u32, a zero u32
)

// errFrame marks bytes from a peer that break the protocol.
var errFrame = errors.New("this is no frame of shoal's link protocol")

// appendHead appends the head of a frame whose body has n bytes.
func appendHead(b []byte, k kind, n int) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(n)), byte(k), 0, 0, 0)
}

// parseHead reads the head of a frame from b, which has headBytes, and checks it.
func parseHead(b []byte) (k kind, n int, err error) {
	length, k := binary.LittleEndian.Uint32(b), kind(b[4])
	switch {
	case k < kindHello || k > kindPiece || b[5]|b[6]|b[7] != 0:
		return 0, 0, fmt.Errorf("%w: it begins with % x", errFrame, b[:headBytes])
	case length > maxBody[k]:
		return 0, 0, fmt.Errorf("%w: %d bytes of kind %d, which may have %d", errFrame, length, k,
			maxBody[k])
	case k == kindPiece && length < pieceBytes:
		return 0, 0, fmt.Errorf("%w: a piece of %d bytes is too short for its name", errFrame,
			length)
	}
	return k, int(length), nil
}

// appendPiece appends all of a piece's frame but the payload.
func appendPiece(b []byte, p fabric.Piece) []byte {
	b = appendHead(b, kindPiece, pieceBytes+int(p.Length))
	b = binary.LittleEndian.AppendUint64(b, p.Transfer)
	b = binary.LittleEndian.AppendUint64(b, p.Offset)
	b = binary.LittleEndian.AppendUint32(b, p.Part)
	return binary.LittleEndian.AppendUint32(b, 0)
}

// parsePiece reads what appendPiece wrote from b, which has headBytes + pieceBytes, and checks it.
func parsePiece(b []byte) (p fabric.Piece, err error) {
	k, n, err := parseHead(b)
	if err != nil {
		return p, err
	}
	if k != kindPiece {
		return p, fmt.Errorf("%w: kind %d on a stream of data", errFrame, k)
	}
	b = b[headBytes:]
	p = fabric.Piece{
		Transfer: binary.LittleEndian.Uint64(b),
		Offset:   binary.LittleEndian.Uint64(b[8:]),
		Part:     binary.LittleEndian.Uint32(b[16:]),
		Length:   uint32(n - pieceBytes),
	}
	if binary.LittleEndian.Uint32(b[20:]) != 0 || p.Offset > math.MaxUint64-uint64(p.Length) {
		return p, fmt.Errorf("%w: a piece at %d of %d bytes, reserved bytes % x", errFrame,
			p.Offset, p.Length, b[20:24])
	}
	return p, nil
}

// frames reads frames from a stream into memory that it uses again. One goroutine uses it at a
// time.
type frames struct {
	from io.Reader       // where they are read
	head [headBytes]byte // the head of the last frame
	body []byte          // memory for bodies; grows, and is used again
}

// nextFrame waits for the next frame, which must be of an allowed kind; the body is valid until the
// next call. A stream that ends inside a frame gives io.ErrUnexpectedEOF, between frames io.EOF.
// The memory grows with what comes, not with what a head claims.
func (f *frames) nextFrame(allowed ...kind) (k kind, body []byte, err error) {
	if _, err := io.ReadFull(f.from, f.head[:]); err != nil {
		return 0, nil, err
	}
	k, n, err := parseHead(f.head[:])
	if err != nil {
		return 0, nil, err
	}
	if !slices.Contains(allowed, k) {
		return 0, nil, fmt.Errorf("%w: kind %d has no place here", errFrame, k)
	}
	for have := 0; have < n; {
		upTo := n
		if n > len(f.body) {
			upTo = min(n, max(4096, 2*have))
			f.body = append(f.body[:have], make([]byte, upTo-have)...)
		}
		if _, err := io.ReadFull(f.from, f.body[have:upTo]); err != nil {
			return 0, nil, noEOF(err)
		}
		have = upTo
	}
	return k, f.body[:n], nil
}

// noEOF returns io.ErrUnexpectedEOF in place of io.EOF, for reads inside a frame.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
