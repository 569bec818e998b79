"""A few sentences in several languages. Of each language, the first has another form of a word of the query."""

from __future__ import annotations

TEXTS = {
    "en": [
        "The houses of the old town were rebuilt after the war.",
        "The train leaves every morning at seven o'clock.",
        "Children are playing with a ball behind the school.",
        "The library lends books and magazines for a month.",
        "In winter there is usually much snow on the mountains.",
        "The doctor prescribes a drug against headaches.",
    ],
    "de": [
        "Die Häuser der Altstadt wurden nach dem Krieg wieder aufgebaut.",
        "Der Zug nach Köln fährt um sieben Uhr.",
        "Kinder spielen im Garten hinter der Schule mit einem Ball.",
        "Die Bücherei verleiht auch Zeitschriften.",
        "Im Winter liegt auf den Bergen meistens viel Schnee.",
        "Der Arzt verschreibt etwas gegen Kopfschmerzen.",
    ],
    "fr": [
        "Les maisons de la vieille ville ont été reconstruites.",
        "Le train de Lyon part tous les matins à sept heures.",
        "Les enfants jouent dans le jardin derrière leur école.",
        "La bibliothèque prête des livres et des revues.",
        "En hiver il y a beaucoup de neige sur les montagnes.",
        "Le médecin prescrit un remède contre les maux de tête.",
    ],
    "fi": [
        "Vanhankaupungin talot rakennettiin uudelleen sodan jälkeen.",
        "Juna lähtee joka aamu kello seitsemän.",
        "Lapset leikkivät puutarhassa koulun takana pallon kanssa.",
        "Kirjasto lainaa kirjoja ja lehtiä kuukaudeksi.",
        "Talvella vuorilla on yleensä paljon lunta.",
        "Lääkäri määrää lääkettä päänsärkyyn.",
    ],
    "vi": [
        "Những ngôi nhà trong phố cổ đã được xây dựng lại.",
        "Chuyến tàu khởi hành lúc bảy giờ mỗi buổi sáng.",
        "Trẻ em chơi bóng trong vườn phía sau trường học.",
        "Thư viện cho mượn sách và tạp chí trong một tháng.",
        "Vào mùa đông thường có nhiều tuyết trên núi.",
        "Bác sĩ kê đơn thuốc chữa đau đầu.",
    ],
    "ja": [
        "旧市街の家は戦争の後に再建されました。",
        "列車は毎朝七時に駅を出発します。",
        "子供たちは学校の裏庭でボール遊びをしています。",
        "図書館は本と雑誌を一か月貸し出します。",
        "冬には山にたくさんの雪が積もります。",
        "医者は頭痛の薬を処方します。",
    ],
    "zh": [
        "老城区的房屋在战后重新建造。",
        "火车每天早上七点钟出发。",
        "孩子们在学校后面的花园里玩球。",
        "图书馆出借书籍和杂志一个月。",
        "冬天山上通常有很多积雪。",
        "医生开了治疗头痛的药物。",
    ],
    "th": [
        "บ้านในเมืองเก่าถูกสร้างขึ้นใหม่หลังสงคราม",
        "รถไฟออกเดินทางทุกเช้าเวลาเจ็ดนาฬิกา",
        "เด็กๆ เล่นบอลในสวนหลังโรงเรียน",
        "ห้องสมุดให้ยืมหนังสือและนิตยสารหนึ่งเดือน",
        "ในฤดูหนาวมักมีหิมะมากบนภูเขา",
        "หมอสั่งยาแก้ปวดหัว",
    ],
}
QUERIES = {
    "en": "house",
    "de": "Haus",
    "fr": "maison",
    "fi": "talo",
    "vi": "ngôi nhà",
    "ja": "家",
    "zh": "房屋",
    "th": "บ้าน",
}
"""A query that only the first sentence of its language answers."""
