package pickle

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"math/big"
	"slices"
)

// This file writes pickles, for the formats that have some. Its functions are pure: they append to
// b, and return it.

// A New is an object that a pickle makes without calling its class, and gives a state.
type New struct {
	Class Global
	State any
}

// A Reference is a reference to data outside the pickle.
type Reference struct{ ID any } // ID is a value that Append can write

// Append appends a pickle of protocol 2 of what Load can read: None, numbers, texts, bytes, tuples,
// lists, dicts, globals, members of enumerations, references, New, and an Object as the call of its
// class and, where it has one, its state. The same values give the same bytes. It fails on other
// values, and on what is nested too deeply.
func Append(b []byte, v any) ([]byte, error) {
	b, err := appendValue(append(b, 0x80, 2), v, 0)
	return append(b, '.'), err
}

// maxNested bounds the depth of the values that Append writes.
const maxNested = 200

// appendValue appends the instructions that build v, which is nested depth deep.
func appendValue(b []byte, v any, depth int) ([]byte, error) {
	if depth > maxNested {
		return b, fmt.Errorf("pickle: nested more than %d deep", maxNested)
	}
	var err error
	switch v := v.(type) {
	case nil:
		return append(b, 'N'), nil
	case bool:
		if v {
			return append(b, 0x88), nil
		}
		return append(b, 0x89), nil
	case int64:
		return appendInt(b, v), nil
	case *big.Int:
		return appendLong(b, v)
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 'G'), math.Float64bits(v)), nil
	case string:
		return appendText(b, v), nil
	case []byte:
		return appendBytes(b, v), nil
	case Tuple:
		b, err = appendItems(append(b, '('), v, depth)
		return append(b, 't'), err
	case *List:
		b = append(b, ']')
		for batch := range batches(v.Items) {
			if b, err = appendItems(append(b, '('), batch, depth); err != nil {
				return b, err
			}
			b = append(b, 'e')
		}
		return b, nil
	case *Dict:
		return appendDict(b, v, depth)
	case Global:
		return appendGlobal(b, v), nil
	case Member:
		return appendCall(b,
			&Object{Class: Global{"builtins", "getattr"}, Args: []any{v.Class, v.Name}}, depth)
	case Reference:
		b, err = appendValue(b, v.ID, depth+1)
		return append(b, 'Q'), err
	case New:
		b = append(appendGlobal(b, v.Class), ')', 0x81)
		b, err = appendValue(b, v.State, depth+1)
		return append(b, 'b'), err
	case *Object:
		return appendCall(b, v, depth)
	}
	return b, fmt.Errorf("pickle: %s cannot be written", KindWithArticle(v))
}

// appendItems appends the instructions that put items on the stack.
func appendItems(b []byte, items []any, depth int) ([]byte, error) {
	var err error
	for _, x := range items {
		if b, err = appendValue(b, x, depth+1); err != nil {
			return b, err
		}
	}
	return b, nil
}

// batches splits items into those that go on the stack together: as many as with Python, and one
// empty batch for an empty list.
func batches[T any](items []T) iter.Seq[[]T] {
	if len(items) == 0 {
		return slices.Values([][]T{nil})
	}
	return slices.Chunk(items, 1000)
}

// appendDict appends the instructions that build a dict.
func appendDict(b []byte, d *Dict, depth int) ([]byte, error) {
	b = append(b, '}')
	for batch := range batches(d.Items) {
		b = append(b, '(')
		for _, item := range batch {
			var err error
			if b, err = appendItems(b, []any{item.Key, item.Value}, depth); err != nil {
				return b, err
			}
		}
		b = append(b, 'u')
	}
	return b, nil
}

// appendCall appends the call of an object's class, and its state, if it has one.
func appendCall(b []byte, o *Object, depth int) ([]byte, error) {
	b, err := appendItems(append(appendGlobal(b, o.Class), '('), o.Args, depth)
	b = append(b, 't', 'R')
	if err == nil && o.State != nil {
		b, err = appendValue(b, o.State, depth+1)
		b = append(b, 'b')
	}
	return b, err
}

// appendGlobal appends the instruction that names a global.
func appendGlobal(b []byte, g Global) []byte {
	return append(append(append(append(append(b, 'c'), g.Module...), '\n'), g.Name...), '\n')
}

// appendInt appends the instruction with a number of up to 64 bits.
func appendInt(b []byte, n int64) []byte {
	if n == int64(int32(n)) {
		return binary.LittleEndian.AppendUint32(append(b, 'J'), uint32(n))
	}
	return binary.LittleEndian.AppendUint64(append(b, 0x8a, 8), uint64(n))
}

// appendLong appends the instruction with a longer number, in two's complement.
func appendLong(b []byte, n *big.Int) ([]byte, error) {
	size := n.BitLen()/8 + 1 // with a bit for the sign
	if size > 255 {
		return b, fmt.Errorf("pickle: an integer of %d bytes", size)
	}
	x := n
	if n.Sign() < 0 {
		x = new(big.Int).Add(n, new(big.Int).Lsh(big.NewInt(1), uint(8*size)))
	}
	bytes := x.FillBytes(make([]byte, size))
	slices.Reverse(bytes)
	return append(append(b, 0x8a, byte(size)), bytes...), nil
}

// appendText appends the instruction with a text in UTF-8.
func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint32(append(b, 'X'), uint32(len(s))), s...)
}

// appendBytes appends the instructions for bytes as protocol 2 has them: as a text in Latin-1.
func appendBytes(b, data []byte) []byte {
	runes := make([]rune, len(data))
	for i, c := range data {
		runes[i] = rune(c)
	}
	b = appendText(append(appendGlobal(b, Global{"_codecs", "encode"}), '('), string(runes))
	return append(appendText(b, "latin1"), 't', 'R')
}
