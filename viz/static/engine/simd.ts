/**
 * x · Wᵀ + b in WebAssembly with SIMD; product.js packs W and calls this. `npm run build` compiles it twice, with relaxed
 * fused multiply-add and without, by AssemblyScript.
 *
 * W lies in panels of eight rows, the eight numbers of each column together: panel p, column i and row 8·p + lane are at
 * (p · stride + i) · 8 + lane. A type says how a number is stored: f32; i16 for float16; u16 for bfloat16; i8 for codes
 * that are multiplied by a scale of their row.
 */

/** sum + one · other. */
@inline function added(sum: v128, one: v128, other: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) return f32x4.relaxed_madd(one, other, sum);
  return f32x4.add(sum, f32x4.mul(one, other));
}

/** Four numbers of a panel as single precision. */
@inline function four<T>(from: usize): v128 {
  if (isFloat<T>()) return v128.load(from);
  if (sizeof<T>() == 1) return f32x4.convert_i32x4_s(i32x4.extend_low_i16x8_s(i16x8.extend_low_i8x16_s(v128.load32_zero(from))));
  const bits = v128.load_ext<u16>(from);
  if (!isSigned<T>()) return i32x4.shl(bits, 16);
  // The exponent of float16 begins 112 lower, which a product mends.
  const size = i32x4.shl(v128.and(bits, i32x4.splat(0x7fff)), 13);
  return v128.or(f32x4.mul(size, f32x4.splat(5.192296858534828e33)), i32x4.shl(v128.and(bits, i32x4.splat(0x8000)), 16));
}

@inline function stored(to: usize, low: v128, high: v128, scales: usize, bias: usize): void {
  if (scales) { low = f32x4.mul(low, v128.load(scales)); high = f32x4.mul(high, v128.load(scales, 16)); }
  if (bias) { low = f32x4.add(low, v128.load(bias)); high = f32x4.add(high, v128.load(bias, 16)); }
  v128.store(to, low);
  v128.store(to, high, 16);
}

/** `rows` is a multiple of four, and of four rows the numbers of each column lie together. Four rows and a panel are eight sums. */
@inline function fourRows<T>(x: usize, w: usize, scales: usize, bias: usize, out: usize, rows: i32, width: i32, panels: i32, stride: i32): void {
  const outRow: usize = <usize>panels << 5;
  for (let p: usize = 0; p < <usize>panels; p++) {
    const panel: usize = w + p * <usize>stride * 8 * sizeof<T>();
    const scale: usize = scales ? scales + (p << 5) : 0, offset: usize = bias ? bias + (p << 5) : 0;
    let from = x;
    for (let r = 0; r < rows; r += 4) {
      let at = panel;
      let a0 = f32x4.splat(0), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, d0 = a0, d1 = a0;
      for (let i = 0; i < width; i++) {
        const low = four<T>(at), high = four<T>(at + 4 * sizeof<T>());
        let s = v128.load32_splat(from); a0 = added(a0, s, low); a1 = added(a1, s, high);
        s = v128.load32_splat(from, 4); b0 = added(b0, s, low); b1 = added(b1, s, high);
        s = v128.load32_splat(from, 8); c0 = added(c0, s, low); c1 = added(c1, s, high);
        s = v128.load32_splat(from, 12); d0 = added(d0, s, low); d1 = added(d1, s, high);
        at += 8 * sizeof<T>(); from += 16;
      }
      const to = out + <usize>r * outRow + (p << 5);
      stored(to, a0, a1, scale, offset);
      stored(to + outRow, b0, b1, scale, offset);
      stored(to + 2 * outRow, c0, c1, scale, offset);
      stored(to + 3 * outRow, d0, d1, scale, offset);
    }
  }
}

/** One row and four panels, a multiple of which there are, are eight sums. */
@inline function oneRow<T>(x: usize, w: usize, scales: usize, bias: usize, out: usize, width: i32, panels: i32, stride: i32): void {
  const step: usize = <usize>stride * 8 * sizeof<T>();
  for (let p: usize = 0; p < <usize>panels; p += 4) {
    let a = w + p * step, from = x;
    let b = a + step, c = b + step, d = c + step;
    let a0 = f32x4.splat(0), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, d0 = a0, d1 = a0;
    for (let i = 0; i < width; i++) {
      const s = v128.load32_splat(from), half: usize = 4 * sizeof<T>();
      a0 = added(a0, s, four<T>(a)); a1 = added(a1, s, four<T>(a + half));
      b0 = added(b0, s, four<T>(b)); b1 = added(b1, s, four<T>(b + half));
      c0 = added(c0, s, four<T>(c)); c1 = added(c1, s, four<T>(c + half));
      d0 = added(d0, s, four<T>(d)); d1 = added(d1, s, four<T>(d + half));
      from += 4; a += 2 * half; b += 2 * half; c += 2 * half; d += 2 * half;
    }
    const to = out + (p << 5), scale: usize = scales ? scales + (p << 5) : 0, offset: usize = bias ? bias + (p << 5) : 0;
    stored(to, a0, a1, scale, offset);
    stored(to + 32, b0, b1, scale ? scale + 32 : 0, offset ? offset + 32 : 0);
    stored(to + 64, c0, c1, scale ? scale + 64 : 0, offset ? offset + 64 : 0);
    stored(to + 96, d0, d1, scale ? scale + 96 : 0, offset ? offset + 96 : 0);
  }
}

@inline function product<T>(x: usize, w: usize, scales: usize, bias: usize, out: usize, rows: i32, width: i32, panels: i32, stride: i32): void {
  if (rows == 1) oneRow<T>(x, w, scales, bias, out, width, panels, stride);
  else fourRows<T>(x, w, scales, bias, out, rows, width, panels, stride);
}

export function float32(x: usize, w: usize, scales: usize, bias: usize, out: usize, rows: i32, width: i32, panels: i32, stride: i32): void {
  product<f32>(x, w, scales, bias, out, rows, width, panels, stride);
}

export function float16(x: usize, w: usize, scales: usize, bias: usize, out: usize, rows: i32, width: i32, panels: i32, stride: i32): void {
  product<i16>(x, w, scales, bias, out, rows, width, panels, stride);
}

export function bfloat16(x: usize, w: usize, scales: usize, bias: usize, out: usize, rows: i32, width: i32, panels: i32, stride: i32): void {
  product<u16>(x, w, scales, bias, out, rows, width, panels, stride);
}

export function int8(x: usize, w: usize, scales: usize, bias: usize, out: usize, rows: i32, width: i32, panels: i32, stride: i32): void {
  product<i8>(x, w, scales, bias, out, rows, width, panels, stride);
}
