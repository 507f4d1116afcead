package hf

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/tensor"
)

// This file lays out what package hf reads: it says what the files are to hold, and does no I/O.

// FileName is the name of the file of a checkpoint of one file.
const FileName = "model.safetensors"

// Layout lays tensors out as Hugging Face's libraries do: in one file when they fit into most
// bytes, else in several with an index. Only the names, element types and shapes of the tensors
// count; their order decides which file they are in. metadata goes into each file.
func Layout(tensors []format.Tensor, metadata map[string]string, most int64) (*format.Output,
	error) {
	entries := make([]safetensors.Tensor, len(tensors))
	for i, t := range tensors {
		entries[i] = safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape}
	}
	files, err := safetensors.SplitFiles(entries, most)
	if err != nil {
		return nil, err
	}
	o := &format.Output{Checkpoint: format.Checkpoint{Format: "safetensors"}}
	if len(files) <= 1 {
		h, err := addFile(o, FileName, entries, metadata)
		if err != nil {
			return nil, err
		}
		o.Tensors = append(o.Tensors, wholeTensors(h, FileName)...)
		return o, o.Finish()
	}
	index := &safetensors.Index{Files: map[string]string{}}
	var bytes int64
	for i, file := range files {
		name := safetensors.ShardName(i, len(files))
		h, err := addFile(o, name, file, metadata)
		if err != nil {
			return nil, err
		}
		for _, t := range h.Tensors {
			if other := index.Files[t.Name]; other != "" {
				return nil, fmt.Errorf("safetensors: tensor %q stands in %s and %s", t.Name, other,
					name)
			}
			index.Files[t.Name] = name
			bytes += t.End - t.Begin
		}
		o.Tensors = append(o.Tensors, wholeTensors(h, name)...)
	}
	text := index.AppendJSON(nil, bytes)
	o.Files = append(o.Files,
		format.OutputFile{Name: safetensors.IndexName, Size: int64(len(text))})
	o.Frames = append(o.Frames, format.Frame{File: safetensors.IndexName, Bytes: text})
	return o, o.Finish()
}

// wholeTensors returns the tensors of a file that holds whole ones.
func wholeTensors(h *safetensors.Header, file string) (list []format.Tensor) {
	for _, t := range h.Tensors {
		list = append(list, wholeTensor(h, t, file))
	}
	return list
}

// addFile lays out one file with whole tensors or boxes, adds it to an output, and returns its
// header.
func addFile(o *format.Output, name string, entries []safetensors.Tensor,
	metadata map[string]string) (*safetensors.Header, error) {
	h, err := safetensors.Layout(entries, metadata)
	if err != nil {
		return nil, err
	}
	start, err := h.AppendBinary(nil)
	if err != nil {
		return nil, err
	}
	o.Files = append(o.Files, format.OutputFile{Name: name, Size: h.Size()})
	o.Frames = append(o.Frames, format.Frame{File: name, Bytes: start})
	return h, nil
}

// LayoutShards lays out a file for each rank with the boxes of the rank and their offsets in their
// tensors, as torch's distributed checkpoint does. A file has at most one box of a tensor, so a
// rank with several boxes of one tensor, as flat buffers give, has several files. No two boxes may
// overlap. metadata goes into each file.
func LayoutShards(ranks [][]format.Shard, metadata map[string]string) (*format.Output, error) {
	o := &format.Output{Checkpoint: format.Checkpoint{Format: "safetensors"}}
	rounds, most := make([][][]format.Shard, len(ranks)), 1
	for i, shards := range ranks {
		var err error
		if rounds[i], err = splitFiles(shards); err != nil {
			return nil, err
		}
		most = max(most, len(rounds[i]))
	}
	index := map[string]int{}
	for i := range ranks {
		for k, shards := range rounds[i] {
			name := fmt.Sprintf("shard-%05d-model-%05d-of-%05d.safetensors", i+1, k+1, most)
			origin := format.Origin{Rank: i, Ranks: len(ranks), File: k + 1, Files: len(rounds[i])}
			if err := addShards(o, name, shards, metadata, origin, index); err != nil {
				return nil, err
			}
		}
	}
	return o, o.Finish()
}

// splitFiles spreads the boxes of a rank over files so that each has at most one box of a tensor. A
// rank without boxes has a file too.
func splitFiles(shards []format.Shard) ([][]format.Shard, error) {
	files, seen := [][]format.Shard{nil}, map[string][]tensor.Box{}
	for _, s := range shards {
		if len(s.Box) != len(s.Shape) || !s.Shape.Box().Contains(s.Box) {
			return nil, fmt.Errorf("safetensors: tensor %q: box %v lies outside shape %v", s.Name,
				s.Box, s.Shape)
		}
		before := seen[s.Name]
		for _, b := range before {
			if b.Overlaps(s.Box) {
				return nil, fmt.Errorf(
					"safetensors: tensor %q: box %v overlaps box %v of the same rank", s.Name,
					s.Box, b)
			}
		}
		if len(before) == len(files) {
			files = append(files, nil)
		}
		files[len(before)] = append(files[len(before)], s)
		seen[s.Name] = append(before, s.Box)
	}
	return files, nil
}

// addShards lays out one file with boxes, and adds it and the pieces in it to an output. Its origin
// says how large the tensors are and which file it is, so that a reader notices missing files.
// index is the position of each tensor in the output, and gets those of new ones.
func addShards(o *format.Output, name string, shards []format.Shard, metadata map[string]string,
	origin format.Origin, index map[string]int) error {
	origin.Shapes = map[string]tensor.Shape{}
	boxes, info := map[string]format.Shard{}, map[string]map[string][]int{}
	var entries []safetensors.Tensor
	for _, s := range shards {
		at := make([]int, len(s.Box))
		for d, x := range s.Box {
			at[d] = x.From
		}
		boxes[s.Name], info[s.Name] = s, map[string][]int{"saved_offsets": at}
		entries = append(entries,
			safetensors.Tensor{Name: s.Name, DType: s.DType, Shape: s.Box.Shape()})
		origin.Shapes[s.Name] = append(tensor.Shape{}, s.Shape...)
	}
	own := map[string]string{"format": "pt"}
	maps.Copy(own, metadata)
	text, err := json.Marshal(info)
	if err != nil {
		return err
	}
	if own[format.OriginKey], err = origin.Text(); err != nil {
		return err
	}
	own["DCP_VERSION"], own[shardingInfo] = "1.0", string(text)
	h, err := addFile(o, name, entries, own)
	if err != nil {
		return err
	}
	for _, e := range h.Tensors {
		s := boxes[e.Name]
		k, known := index[e.Name]
		if !known {
			k = len(o.Tensors)
			index[e.Name] = k
			o.Tensors = append(o.Tensors,
				format.Tensor{Name: s.Name, DType: s.DType, Shape: s.Shape})
		}
		o.Tensors[k].Pieces = append(o.Tensors[k].Pieces,
			format.Piece{Box: s.Box, File: name, Offset: h.Data + e.Begin})
	}
	return nil
}

// wholeTensor returns a tensor that a file holds whole.
func wholeTensor(h *safetensors.Header, t safetensors.Tensor, file string) format.Tensor {
	return format.PackedIn(file, h.Data+t.Begin, t.Name, t.DType, t.Shape)
}
