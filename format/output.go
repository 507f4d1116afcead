package format

// This file is what the packages of the formats lay out and a writer carries out: the content of
// files as data, without I/O.

// An Output is a checkpoint to be written: its pieces say where elements go, and the other bytes of
// its files are there. Elements can be written in any order, by anyone who has them.
type Output struct {
	Checkpoint
	Files  []OutputFile // all files, with their sizes
	Frames []Frame      // their bytes that are no elements
	Sums   []Sum        // checksums to be written last
	// Implied lists tensors that readers make from others in the output: Model is Main, rounded.
	Implied []*Proof
	// Altered lists the values that change their type, because a file for torch.load cannot hold
	// the original type.
	Altered []Altered
	Notes   []string // assumptions, for people
}

// An Altered is a value that had one Python type and gets another, or contains such a value.
type Altered struct{ Path, Was, Is string }

// An OutputFile is a file and its size in bytes.
type OutputFile struct {
	Name string
	Size int64 // bytes
}

// A Frame is a range of a file that holds no elements: a header, a directory, padding.
type Frame struct {
	File   string
	Offset int64 // first byte of the range in the file
	Bytes  []byte
}

// A Sum is the CRC-32 (IEEE) of a range of a file. It is written, little-endian, to several
// positions of that file once the range is there.
type Sum struct {
	File     string
	From, To int64   // range in the file, in bytes
	At       []int64 // offsets in the file at which the checksum is written
}
