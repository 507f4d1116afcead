// Package detect finds out of which format a checkpoint is, and reads it with the reader for that.
package detect

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/hf"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/format/ranks"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/pattern"
)

// Open reads the checkpoint that is a folder, or with a name the one that is that file in it, but
// for the elements of tensors. The files returned are those that the pieces of the tensors name;
// the caller closes them. When it fails, it has closed them. It blocks on the folder.
func Open(fsys fs.FS, name string) (*format.Checkpoint, *format.Files, error) {
	var c *format.Checkpoint
	fsys = format.WithoutAppleDouble(fsys)
	files := format.NewFiles(fsys)
	read, dir, err := chooseReader(fsys, name)
	if err == nil && dir != "." {
		if fsys, err = fs.Sub(fsys, dir); err == nil {
			files = format.NewFiles(format.WithoutAppleDouble(fsys))
			files.Dir = dir
		}
	}
	if err == nil {
		c, err = read(files)
	}
	if err != nil {
		if what := files.ExplainLast(); what != nil {
			err = what
		}
		return nil, nil, errors.Join(err, files.Close())
	}
	return c, files, nil
}

// A reader reads a checkpoint from the files of its folder, but for the elements of tensors. It
// blocks on them, and runs on the goroutine of files.
type reader func(*format.Files) (*format.Checkpoint, error)

// chooseReader returns the reader for a checkpoint, and the folder that it is for, by the names of
// the files that are there. It reads the list of the folder, and the files that decide.
func chooseReader(fsys fs.FS, name string) (reader, string, error) {
	if name != "" {
		r, err := chooseFile(fsys, name)
		return r, ".", err
	}
	if r, dir, err := chooseFolder(fsys); r != nil || err != nil {
		return r, dir, err
	}
	_, err := fs.ReadDir(fsys, ".")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", errors.New("there is no such folder or file")
	}
	if err != nil { // fs.Glob tells of no error
		return nil, "", fmt.Errorf("the folder cannot be listed: %w", err)
	}
	if has(fsys, "*.distcp") {
		return nil, "", fmt.Errorf("%s is missing, which says what the files *.distcp of torch's "+
			"distributed checkpoint hold: it was not saved to its end, or copied without the "+
			"files whose names begin with a dot", dcp.MetadataName)
	}
	if newest := newestFolder(fsys); newest != "" {
		return nil, "", fmt.Errorf("the folder has checkpoints, and is none itself; give one of "+
			"them, such as %s in it", newest)
	}
	return nil, "", fmt.Errorf("the folder is no checkpoint that shoal knows: there are no "+
		"*.safetensors or pytorch_model*.bin (Hugging Face), .metadata (torch DCP), "+
		"latest_checkpointed_iteration.txt or mp_rank_* (Megatron), latest or *_model_states.pt "+
		"(DeepSpeed) in it; a single .pt file is given by its own name%s", singleFile(fsys))
}

// has reports whether a folder has files whose names match. It reads the list of the folder.
func has(fsys fs.FS, names string) bool {
	found, err := fs.Glob(fsys, names)
	return err == nil && len(found) > 0
}

// chooseFolder is chooseReader for a folder; nil if it is no checkpoint.
func chooseFolder(fsys fs.FS) (reader, string, error) {
	switch {
	case has(fsys, ranks.LayoutName):
		return ranks.Read, ".", nil
	case has(fsys, dcp.MetadataName):
		return megatron.ReadDist, ".", nil
	case has(fsys, megatron.LatestName):
		return chooseMegatron(fsys)
	case has(fsys, "mp_rank_*/model_optim_rng.pt"):
		return readMegatron, ".", nil
	case has(fsys, deepspeed.LatestName), has(fsys, deepspeed.UniversalName),
		has(fsys, "*mp_rank_*_model_states.pt"):
		return deepspeed.Read, ".", nil
	case hf.IsModelFolder(fsys):
		return hf.Read, ".", nil
	}
	return nil, "", nil
}

// numbered matches a name with a number at its end, such as checkpoint-500, or that is one.
var numbered = pattern.New(`^(?:[^.].*?)??(\d{1,18})$`)

// numberOf returns the number at the end of a name; -1 if there is none.
func numberOf(name string) int {
	match := numbered.FindStringSubmatch(name)
	if match == nil {
		return -1
	}
	n, _ := strconv.Atoi(match[1]) // 18 digits are an int
	return n
}

// newestTried is in how many folders, of the highest numbers, a checkpoint is looked for: in a
// bucket that takes requests.
const newestTried = 8

// newestFolder returns the folder of a checkpoint with the highest number at its end, among those
// in a folder; "" if there is none. It reads lists of folders.
func newestFolder(fsys fs.FS) string {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return ""
	}
	numbers := map[string]int{}
	for _, e := range entries {
		if n := numberOf(e.Name()); n >= 0 && e.IsDir() {
			numbers[e.Name()] = n
		}
	}
	names := slices.SortedFunc(maps.Keys(numbers), func(a, b string) int {
		return cmp.Or(numbers[b]-numbers[a], strings.Compare(a, b))
	})
	for _, name := range names[:min(len(names), newestTried)] {
		sub, err := fs.Sub(fsys, name)
		if err != nil {
			continue
		}
		if r, _, err := chooseFolder(sub); r != nil && err == nil {
			return name
		}
	}
	return ""
}

// singleFile names a file of a folder that can be a checkpoint by itself, for an error: that with
// the highest number at the end of its name, as trainers give them; "" if there is none. It reads
// the list of the folder.
func singleFile(fsys fs.FS) string {
	for _, names := range []string{"*.ckpt", "*.pt", "*.pth", "*.bin"} {
		if found, err := fs.Glob(fsys, names); err == nil && len(found) > 0 {
			return ", such as " + slices.MaxFunc(found, func(a, b string) int {
				return cmp.Compare(numberOf(stemOf(a)), numberOf(stemOf(b)))
			})
		}
	}
	return ""
}

// stemOf returns the name of a file without its extension.
func stemOf(name string) string { return strings.TrimSuffix(name, path.Ext(name)) }

// chooseMegatron returns the reader for the newest iteration in a folder of Megatron, which can be
// of its own format or torch's, and the folder of that. It reads the file that names the
// iteration, and closes it.
func chooseMegatron(fsys fs.FS) (reader, string, error) {
	files := format.NewFiles(fsys)
	dir, err := megatron.Latest(files)
	if err = errors.Join(err, files.Close()); err != nil {
		return nil, "", err
	}
	if _, err := fs.Stat(fsys, dir+"/"+dcp.MetadataName); err == nil {
		return megatron.ReadDist, dir, nil
	}
	return readMegatron, dir, nil
}

// readMegatron reads Megatron's own format and joins the tensors of the model. It is a reader.
func readMegatron(files *format.Files) (*format.Checkpoint, error) {
	c, err := megatron.Read(files)
	if err != nil {
		return nil, err
	}
	return c, megatron.JoinRanks(c)
}

// chooseFile returns the reader for a single file, by its name or else by its first bytes. It
// opens the file, and closes it.
func chooseFile(fsys fs.FS, name string) (reader, error) {
	if hf.IsIndex(name) {
		return func(files *format.Files) (*format.Checkpoint, error) {
			return hf.ReadIndexed(files, name)
		}, nil
	}
	if name == ranks.LayoutName {
		return ranks.Read, nil
	}
	if name == dcp.MetadataName {
		return megatron.ReadDist, nil
	}
	files := format.NewFiles(fsys)
	defer files.Close()
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	torch, err := hf.IsTorch(f)
	if err != nil {
		return nil, err
	}
	head := make([]byte, min(9, f.Size))
	if err := f.ReadFull(head, 0); err != nil {
		return nil, err
	}
	safetensors := len(head) == 9 && head[8] == '{'
	switch {
	// What else begins as a zip archive or a pickle is explained by the reader of these.
	case torch, !safetensors && strings.HasPrefix(string(head), "\x80"):
		return func(files *format.Files) (*format.Checkpoint, error) {
			return torchzip.Read(files, name)
		}, nil
	case safetensors, strings.HasSuffix(name, ".safetensors"):
		return func(files *format.Files) (*format.Checkpoint, error) {
			return hf.ReadFile(files, name)
		}, nil
	}
	if err := files.ExplainLast(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%s is neither a safetensors file nor one of torch.save", name)
}
