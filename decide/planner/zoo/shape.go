// Package zoo has models by formula: what the layers of well-known language models compute, hold
// and send follows from their shapes, and what that takes from the peak of a device. Nothing of it
// was measured. It is pure.
package zoo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/spelling"
)

// A Shape is what a decoder of the GPT or Llama family is made of.
type Shape struct {
	Name  string
	Title string // for people, with where the shape is published
	// Blocks are the layers between embedding and head.
	Blocks int
	Width  int // of what goes from layer to layer
	Heads  int // of the queries
	// KeyHeads are those of keys and values, as many as Heads where queries share none.
	KeyHeads  int
	HeadWidth int
	Inner     int  // width inside the perceptron
	Gated     bool // whether the perceptron has a gate, and so three matrices and not two
	// Vectors are the parameters of a block beside its matrices, those of norms and biases, counted
	// in widths; Last are those of the norm before the head.
	Vectors, Last int
	Vocabulary    int
	Positions     int  // learned ones; 0 where positions are rotated into queries and keys
	Tied          bool // whether head and embedding are one matrix
	Dropout       bool // whether masks of dropout are kept for the backward pass
	Context       int  // tokens of a sample
}

// shapes are all, those of a family one after the other.
var shapes = []Shape{
	gpt2("small", 12, 768), gpt2("medium", 24, 1024), gpt2("large", 36, 1280),
	gpt2("xl", 48, 1600),
	gpt3("1.3b", 24, 2048, 16), gpt3("2.7b", 32, 2560, 32), gpt3("6.7b", 32, 4096, 32),
	gpt3("13b", 40, 5120, 40), gpt3("175b", 96, 12288, 96),
	{Name: "gpt-neo-2.7b", Title: "GPT-Neo 2.7B (EleutherAI 2021)", Blocks: 32, Width: 2560,
		Heads: 20, KeyHeads: 20, HeadWidth: 128, Inner: 10240, Vectors: 10, Last: 2,
		Vocabulary: 50257, Positions: 2048, Tied: true, Context: 2048},
	{Name: "gpt-neox-20b", Title: "GPT-NeoX-20B (Black et al. 2022)", Blocks: 44, Width: 6144,
		Heads: 64, KeyHeads: 64, HeadWidth: 96, Inner: 24576, Vectors: 13, Last: 2,
		Vocabulary: 50432, Context: 2048},
	megatron("22b", 48, 6144, 64), megatron("530b", 105, 20480, 128),
	megatron("1t", 128, 25600, 160),
	llama2("7b", 32, 4096, 32, 32, 11008), llama2("13b", 40, 5120, 40, 40, 13824),
	llama2("70b", 80, 8192, 64, 8, 28672),
	llama3("1b", 16, 2048, 32, 64, 8192, true), llama3("3b", 28, 3072, 24, 128, 8192, true),
	llama3("8b", 32, 4096, 32, 128, 14336, false),
	llama3("70b", 80, 8192, 64, 128, 28672, false),
	llama3("405b", 126, 16384, 128, 128, 53248, false),
}

// gpt2 returns the GPT-2 of a size, with so many blocks of a width, whose heads have 64 elements.
func gpt2(size string, blocks, width int) Shape {
	s := gpt(blocks, width, width/64)
	s.Name, s.Title, s.Context = "gpt2-"+size, "GPT-2 "+size+" (Radford et al. 2019)", 1024
	s.Positions, s.Dropout = s.Context, true
	return s
}

// gpt3 returns a GPT-3 of Brown et al. 2020, table 2.1. The one of 13 billion parameters has a
// width of 5120 and not 5140, as all that were made after it.
func gpt3(size string, blocks, width, heads int) Shape {
	s := gpt(blocks, width, heads)
	s.Name, s.Title = "gpt3-"+size, "GPT-3 "+strings.ToUpper(size)+" (Brown et al. 2020)"
	return s
}

// megatron returns a model of Korthikanti et al. 2022, table 3.
func megatron(size string, blocks, width, heads int) Shape {
	s := gpt(blocks, width, heads)
	s.Name, s.Vocabulary, s.Dropout = "megatron-"+size, 51200, true
	s.Title = "Megatron " + strings.ToUpper(size) + " (Korthikanti et al. 2022)"
	return s
}

// gpt returns what all of GPT's with so many blocks of a width, and heads, have in common: norms
// and matrices with biases, learned positions, a perceptron four times as wide.
func gpt(blocks, width, heads int) Shape {
	return Shape{Blocks: blocks, Width: width, Heads: heads, KeyHeads: heads,
		HeadWidth: width / heads, Inner: 4 * width, Vectors: 13, Last: 2, Vocabulary: 50257,
		Positions: 2048, Tied: true, Context: 2048}
}

// llama2 returns the Llama 2 of a size; keys are the heads of keys and values.
func llama2(size string, blocks, width, heads, keys, inner int) Shape {
	return Shape{Name: "llama2-" + size,
		Title:  "Llama 2 " + strings.ToUpper(size) + " (Touvron et al. 2023)",
		Blocks: blocks, Width: width, Heads: heads, KeyHeads: keys, HeadWidth: 128, Inner: inner,
		Gated: true, Vectors: 2, Last: 1, Vocabulary: 32000, Context: 4096}
}

// llama3 returns the Llama 3 of a size, all of which have eight heads of keys and values; head is
// the width of one.
func llama3(size string, blocks, width, heads, head, inner int, tied bool) Shape {
	return Shape{Name: "llama-" + size,
		Title:  "Llama 3 " + strings.ToUpper(size) + " (Grattafiori et al. 2024)",
		Blocks: blocks, Width: width, Heads: heads, KeyHeads: 8, HeadWidth: head, Inner: inner,
		Gated: true, Vectors: 2, Last: 1, Vocabulary: 128256, Tied: tied, Context: 8192}
}

// Shapes lists all models.
func Shapes() []Shape { return slices.Clone(shapes) }

// Find returns the model of a name such as "llama-8b", or "llama-8b@4096" with samples of so many
// tokens.
func Find(name string) (Shape, error) {
	base, context, stated := strings.Cut(name, "@")
	i := slices.IndexFunc(shapes, func(s Shape) bool { return s.Name == base })
	if i < 0 {
		names := make([]string, len(shapes))
		for i, s := range shapes {
			names[i] = s.Name
		}
		return Shape{}, fmt.Errorf("zoo: there is no model %q%s; there are %s", base,
			spelling.Meant(base, names), strings.Join(names, ", "))
	}
	s := shapes[i]
	if stated {
		n, err := strconv.Atoi(context)
		if err != nil || n < 1 || n > 1<<20 {
			return Shape{}, fmt.Errorf("zoo: %q tokens of a sample; there are from 1 to 2^20, as "+
				"in %s@4096", context, base)
		}
		if s.Positions > 0 && n > s.Positions {
			return Shape{}, fmt.Errorf("zoo: samples of %d tokens; %s has learned %d positions", n,
				base, s.Positions)
		}
		s.Context = n
	}
	return s, nil
}
