package format

// An Output is a checkpoint that is to be written: its pieces say where elements go, and everything
// else of its files is there. Elements can be written in any order, by anyone who has them.
type Output struct {
	Checkpoint
	Files  []OutputFile
	Frames []Frame
	Sums   []Sum
	// Implied says of tensors that are not in the output of which others their readers make them:
	// Model is Main, rounded.
	Implied []*Proof
	// Altered are the values that come out as something else, since a file for torch.load cannot
	// have them as they are.
	Altered []Altered
	// Notes are for people: what was taken for granted, since nothing says it.
	Notes []string
}

// Altered is a value that was of one type of Python and comes out as another, or has something in
// it that does.
type Altered struct{ Path, Was, Is string }

// An OutputFile is a file and its size in bytes.
type OutputFile struct {
	Name string
	Size int64
}

// A Frame is bytes of a file that hold no elements: headers, directories, padding.
type Frame struct {
	File   string
	Offset int64
	Bytes  []byte
}

// A Sum is the CRC-32 (IEEE) of some bytes of a file. It is written, little-endian, to several
// places of that file once these bytes are there.
type Sum struct {
	File     string
	From, To int64
	At       []int64
}
